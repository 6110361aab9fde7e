"""Routes of the web page without a browser: public pages, private data, escaping."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import Reader
from command_line import call
from reports.run_fixtures import RunBuilder
from server.page_fixtures import EVIL, records
from starlette.applications import Starlette
from starlette.testclient import TestClient

from bertsmith import config
from bertsmith.server.page import ASSET_PACKAGES, MEDIA_TYPES, NO_RUNS, PANELS, PUBLIC, routes
from bertsmith.system.durable import Disk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(Starlette(routes=routes(runs=folder))) as found:
        yield found


def assets() -> dict[str, str]:
    """Every asset by its name; no two packages have one of the same name."""
    folders = [files(package) / "assets" for package in ASSET_PACKAGES]
    paths = [path for folder in folders for path in folder.iterdir() if Path(path.name).suffix in MEDIA_TYPES]
    assert len({path.name for path in paths}) == len(paths)
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("panel", PANELS)
def test_pages_have_no_inline_or_external_resources(client: TestClient, panel: str) -> None:
    answer = client.get(f"/{panel}")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    known = assets()
    for tag, attributes in Reader(answer.text).elements:
        assert not attributes.keys() & {"style", "srcset", "action"}, tag
        assert not any(name.startswith("on") for name in attributes), tag
        for link in (attributes.get("src"), attributes.get("href")):
            assert link is None or link.removeprefix("assets/") in known or link in {*PANELS, "docs", "#main"}, link
        assert tag != "script" or attributes.get("src")
    assert f"{panel}_panel.js" in answer.text
    assert answer.text.count("aria-current") == 1


def test_scripts_import_existing_assets_only() -> None:
    known = assets()
    for name, text in known.items():
        if name.endswith(".js"):
            imported = re.findall(r'from "([^"]+)"', text)
            assert all(one.removeprefix("./") in known for one in imported), name
            for wanted, other in re.findall(r'^import \{([^}]*)\} from "\./([^"]+)"', text, flags=re.MULTILINE):
                for one in wanted.split(","):
                    assert re.search(rf"^export .*\b{one.strip()}\b", known[other], flags=re.MULTILINE), (name, one)
        assert not re.search(r"@import|\burl\(", text), name
        without = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//[a-z]+\.[a-z]", without), name
        assert not re.search(r"eval\(|new Function|document\.write|outerHTML", text), name


def test_inner_html_is_used_for_reports_only() -> None:
    found = {name: text.count("innerHTML") for name, text in assets().items() if "innerHTML" in text}
    assert found == {"training_panel.js": 1, "evaluation_panel.js": 1}


def test_assets_have_etags(client: TestClient) -> None:
    first = client.get("/assets/base.css")
    assert first.headers["content-type"].startswith("text/css")
    again = client.get("/assets/base.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/assets/elements.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["page.html", "nothing.js", "..%2fpage.py", "%2e%2e%2fpage.py", "__init__.py"])
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    answer = client.get(f"/assets/{name}")
    assert answer.status_code == 404


def test_root_redirects_to_the_playground(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "playground")


def test_pages_and_assets_are_public_and_data_is_not() -> None:
    def is_public(path: str) -> bool:
        return any(route.path_regex.match(path) and route.path in PUBLIC for route in routes(runs=None))

    assert all(is_public(path) for path in ("/", "/playground", "/attention", "/assets/base.css"))
    private = ("/runs", "/runs/forge/two/history", "/evaluations", "/evaluations/apart", "/info", "/playground/more")
    assert not any(is_public(path) for path in private)


def test_suggested_commands_exist() -> None:
    tasks = config.kinds("bertsmith.tasks")
    commands = re.findall(r'command: "bertsmith ([^"]+)"', " ".join(assets().values()))
    assert len(commands) == 11
    for command in set(commands):
        words = shlex.split(command)
        usage = call(words[0], "--help").stdout
        assert all(word in usage for word in words if word.startswith("-")), command
        if "--task" in words:
            assert words[words.index("--task") + 1].partition("/")[0] in tasks, command


def test_running_runs_are_listed_first(client: TestClient, folder: Path) -> None:
    with Disk().lock(folder / EVIL):
        found = {run["name"]: run for run in client.get("/runs").json()}
        assert next(iter(found)) == EVIL
        assert found[EVIL]["state"] == "running"
    assert set(found) == {EVIL, "forge/하나", "forge/two"}
    assert found["forge/two"]["steps"] == found["forge/two"]["planned_steps"] == 40
    assert {run["name"]: run["state"] for run in client.get("/runs").json()}[EVIL] == "unfinished"
    assert str(folder) not in client.get("/runs").text


def test_history_has_the_data_of_the_report(client: TestClient) -> None:
    found = client.get("/runs/forge/two/history", params={"with": "forge/하나"}).json()
    assert found["runs"] == [{"name": "forge/two", "state": "finished"}, {"name": "forge/하나", "state": "finished"}]
    assert [run["name"] for run in found["data"]["runs"]] == ["forge/two", "forge/하나"]
    loss = next(chart for chart in found["data"]["charts"] if chart["name"] == "loss/guess_lm")
    assert {series["run"] for series in loss["series"]} == {0, 1}
    assert "<td>seed</td><td>7</td><td>0</td>" in found["parts"]["recipes"]
    alone = client.get("/runs/forge/two/history").json()
    assert alone["parts"]["scores"] == ""
    assert "learning_rate" in alone["parts"]["recipes"]


def test_a_history_grows_with_its_run(tmp_path: Path) -> None:
    made = RunBuilder(tmp_path / "run")
    made.steps(1, 30)
    with TestClient(Starlette(routes=routes(runs=tmp_path))) as client:

        def last() -> tuple[int, str]:
            answer = client.get("/runs/run/history")
            series = answer.json()["data"]["charts"][0]["series"][0]
            return series["x"][-1], answer.headers["etag"]

        first, mark = last()
        assert (first, mark) == (30, last()[1])
        made.steps(31, 33)
        second, other = last()
        assert second == 33
        assert other != mark


def test_run_data_is_escaped(client: TestClient) -> None:
    names = {"with": ["forge/two"]}
    found = client.get(f"/runs/{EVIL}/history", params=names).json()
    read = Reader("".join(found["parts"].values()))
    assert "img" not in [tag for tag, _ in read.elements]
    assert not any(name.startswith("on") or name == "style" for _, attributes in read.elements for name in attributes)
    assert found["runs"][0]["name"] == EVIL


def test_evaluations(client: TestClient) -> None:
    found = {one["name"]: one for one in client.get("/evaluations").json()}
    assert set(found) == {"forge/two/evaluation", "apart"}
    assert found["apart"]["examples"] == 240
    assert 0.5 < found["apart"]["score"] < 1
    shown = client.get("/evaluations/forge/two/evaluation").json()
    read = Reader(shown["main"])
    assert {"confusion", "examples", "cases"} <= {attributes.get("id") for _, attributes in read.elements}
    assert not {"img", "script", "b"} & {tag for tag, _ in read.elements}
    cells = [attributes["data-cell"] for _, attributes in read.elements if "data-cell" in attributes]
    assert sorted(cells) == sorted(shown["data"]["cells"])
    good = [attributes for _, attributes in read.elements if "good" in (attributes.get("class") or "").split()]
    assert {one["data-cell"] for one in good} == {"0,0", "1,1", "2,2", "3,3"}


@pytest.mark.parametrize(
    "path",
    [
        "/runs/none/history",
        "/runs/forge/history",
        "/runs/forge/two/../../../history",
        "/runs/..%2f..%2fetc/history",
        "/evaluations/none",
        "/evaluations/..%2f..",
        "/evaluations/forge/two",
    ],
)
def test_names_cannot_escape_the_folder(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    if answer.headers["content-type"] == "application/json":
        assert answer.json()["error_type"] == "not_found"


def test_too_many_runs_at_once(client: TestClient) -> None:
    answer = client.get("/runs/forge/two/history", params={"with": [f"run{number}" for number in range(10)]})
    assert (answer.status_code, answer.json()["error"]) == (422, "11 runs in one chart: choose at most 10")


def test_damaged_records_are_reported_and_do_not_hide_others(tmp_path: Path) -> None:
    made = RunBuilder(tmp_path / "good")
    made.steps(1, 3)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "events.jsonl").write_text("oops\n", encoding="utf-8")
    (tmp_path / "bad" / "evaluation.json").write_text('{"model": 3}', encoding="utf-8")
    with TestClient(Starlette(routes=routes(runs=tmp_path))) as client:
        found: dict[str, Any] = {run["name"]: run for run in client.get("/runs").json()}
        assert found["bad"]["error"].startswith("bad/events.jsonl:1 is not an event")
        assert found["good"]["steps"] == 3
        assert client.get("/runs/bad/history").status_code == 422
        assert "is not an evaluation" in client.get("/evaluations").json()[0]["error"]
        assert client.get("/evaluations/bad").status_code == 422
        texts = [client.get(path).text for path in ("/runs", "/runs/bad/history", "/evaluations", "/evaluations/bad")]
        assert not any(str(tmp_path) in text for text in texts)


def test_a_server_without_a_folder_of_runs() -> None:
    with TestClient(Starlette(routes=routes(runs=None))) as client:
        for path in ("/runs", "/evaluations", "/runs/x/history"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert json.loads(answer.text) == {"error": NO_RUNS, "error_type": "not_found"}
