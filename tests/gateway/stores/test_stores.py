"""What a location lists and what is fetched of it, from a server of our own with every fault that one can have."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_world import Fault, FileServer, World, serving_files

from tensorgate.gateway.contract.locations import Location, parse_location
from tensorgate.gateway.stores.cache import CacheFull
from tensorgate.gateway.stores.errors import Changed, Damaged, NotAllowed, NotThere, Unreachable
from tensorgate.gateway.stores.http import Policy, Web
from tensorgate.gateway.stores.listing import FileTree
from tensorgate.gateway.stores.stores import Stores

MODEL = bytes(range(256)) * 400
LARGE = os.urandom(300_000)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving_files() as server:
        server.put(
            "m", {"1/model.onnx": MODEL, "2/model.onnx": LARGE, "2/sub/labels.txt": b"a\nb\n", "notes.txt": b"x"}
        )
        yield server


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


def at(server: FileServer, path: str) -> Location:
    return parse_location(f"{server.url}/{path}")


def only_tree(stores: Stores, location: Location) -> FileTree:
    return stores.listing(location).whole()


# ------------------------------------------------------------------------------------------------------------- listing


def test_versions_are_listed_and_nothing_is_downloaded(server: FileServer, world: World) -> None:
    listing = world.stores().listing(at(server, "m/"))
    versions = listing.versions()
    assert list(versions) == [1, 2]
    assert [each.path for each in versions[2].files] == ["model.onnx", "sub/labels.txt"]
    assert listing.names() == ["1/", "2/", "notes.txt"]
    assert [path for _, path, _ in server.asked] == ["m/SHA256SUMS"]


def test_a_folder_below_is_listed_by_the_sums_above_it(server: FileServer, world: World) -> None:
    listing = world.stores().listing(at(server, "m/2/"))
    assert [each.path for each in listing.files] == ["model.onnx", "sub/labels.txt"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("what is this", "SHA256SUMS, line 1: expected a digest and a name"),
        (f"{'0' * 64}  ../up", "leads out of the folder"),
        (f"{'0' * 64}  /etc/passwd", "leads out of the folder"),
        (f"{'0' * 64}  a\n{'0' * 64}  a/b", "a file and a folder"),
        ("", "lists nothing"),
    ],
)
def test_sums_that_cannot_be(line: str, text: str, server: FileServer, world: World) -> None:
    server.files["m/SHA256SUMS"] = f"{line}\n".encode()
    with pytest.raises((ValueError, OSError), match=text):
        world.stores().listing(at(server, "m/"))


def test_what_a_store_listed_last_is_taken_while_it_is_down(server: FileServer, world: World) -> None:
    stores = world.stores(retries=1)
    before = stores.listing(at(server, "m/"))
    server.faults["GET", "m/SHA256SUMS"] = [Fault(status=503)] * 9
    assert stores.listing(at(server, "m/")) == before
    with pytest.raises(Unreachable, match="answers 503"):
        world.stores(retries=1, cache={"folder": str(world.folder / "other")}).listing(at(server, "m/"))


def test_a_store_that_is_down_is_left_alone_for_longer_and_longer(server: FileServer, world: World) -> None:
    stores = world.stores(retries=0)
    server.faults["GET", "m/SHA256SUMS"] = [Fault(status=503)] * 9
    asked = []
    for _ in range(40):
        with pytest.raises(Unreachable):
            stores.listing(at(server, "m/"))
        asked.append(len(server.asked))
        world.now += 0.25
    assert asked[-1] == 5  # at 0, 0.5, 1.5, 3.5 and 7.5 s
    server.faults.clear()
    world.now += 60
    assert stores.listing(at(server, "m/")).versions()


# ------------------------------------------------------------------------------------------------------------ fetching


def test_a_version_is_fetched_once(server: FileServer, world: World) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[2]
    lease = stores.fetch(tree, at(server, "m/"))
    assert lease.path == stores.cache.place(tree)
    assert (lease.path / "model.onnx").read_bytes() == LARGE
    assert (lease.path / "sub/labels.txt").read_bytes() == b"a\nb\n"
    assert lease.digests["model.onnx"] == hashlib.sha256(LARGE).hexdigest()
    again = world.stores().fetch(tree, at(server, "m/"))
    assert (again.path, again.digests) == (lease.path, lease.digests)
    assert len(server.gets("m/2/model.onnx")) == 1
    assert [line.split(":")[0] for line in world.said] == ["fetching http", "fetched http"]


def test_a_file_that_breaks_off_is_resumed(server: FileServer, world: World) -> None:
    server.faults["GET", "m/2/model.onnx"] = [Fault(cut=100_000), Fault(cut=50_000), Fault(status=502)]
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[2]
    lease = stores.fetch(tree, at(server, "m/"))
    assert (lease.path / "model.onnx").read_bytes() == LARGE
    ranges = [headers.get("Range") for headers in server.gets("m/2/model.onnx")]
    assert ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-"]
    assert world.slept == [0.5, 1.0, 2.0]


def test_a_fetch_goes_on_where_the_last_process_stopped(server: FileServer, world: World) -> None:
    server.faults["GET", "m/2/model.onnx"] = [Fault(cut=200_000)]
    stores = world.stores(retries=0)
    tree = stores.listing(at(server, "m/")).versions()[2]
    with pytest.raises(Unreachable):
        stores.fetch(tree, at(server, "m/"))
    assert not stores.cache.has(tree)
    lease = world.stores().fetch(tree, at(server, "m/"))
    assert (lease.path / "model.onnx").read_bytes() == LARGE
    assert server.gets("m/2/model.onnx")[-1]["Range"] == "bytes=200000-"
    assert "of it there already" in "".join(world.said)


def test_a_server_that_knows_no_ranges_sends_all_again(server: FileServer, world: World) -> None:
    server.faults["GET", "m/2/model.onnx"] = [Fault(cut=100_000), Fault(whole=True)]
    stores = world.stores()
    lease = stores.fetch(stores.listing(at(server, "m/")).versions()[2], at(server, "m/"))
    assert (lease.path / "model.onnx").read_bytes() == LARGE


def test_what_cannot_be_fetched_is_not_listed_again_and_again(server: FileServer, world: World) -> None:
    stores = world.stores(retries=0)
    server.faults["GET", "m/1/model.onnx"] = [Fault(status=503)] * 9
    for _ in range(20):
        with pytest.raises(Unreachable):
            stores.fetch(stores.listing(at(server, "m/")).versions()[1], at(server, "m/"))
        world.now += 0.1
    assert [path for _, path, _ in server.asked] == ["m/SHA256SUMS", "m/1/model.onnx"] * 3  # at 0, 0.5 and 1.5 s
    server.faults.clear()
    world.now += 60
    assert stores.fetch(stores.listing(at(server, "m/")).versions()[1], at(server, "m/")).path.is_dir()


def test_another_digest_is_refused_and_leaves_nothing(server: FileServer, world: World) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[1]
    server.files["m/1/model.onnx"] = MODEL[:-1] + b"!"
    with pytest.raises(Damaged, match=r"model\.onnx: what came has another digest"):
        stores.fetch(tree, at(server, "m/"))
    assert not stores.cache.has(tree)
    server.files["m/1/model.onnx"] = MODEL
    assert (stores.fetch(tree, at(server, "m/")).path / "model.onnx").read_bytes() == MODEL


def test_a_file_that_changes_meanwhile_is_not_mixed(server: FileServer, world: World) -> None:
    def change() -> None:
        server.files["m/2/model.onnx"] = LARGE[::-1]

    stores = world.stores()
    place = at(server, "m/2/model.onnx")
    server.faults["GET", "m/2/model.onnx"] = [Fault(cut=100_000), Fault(before=change)]
    with pytest.raises(Changed):
        stores.fetch(only_tree(stores, place), place)
    world.now += 60
    assert stores.fetch(only_tree(stores, place), place).path.read_bytes() == LARGE[::-1]


@pytest.mark.parametrize(
    ("status", "error"), [(403, NotAllowed), (404, NotThere), (401, NotAllowed), (418, ValueError)]
)
def test_what_a_retry_cannot_mend_is_said_at_once(
    status: int, error: type[Exception], server: FileServer, world: World
) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[1]
    server.faults["GET", "m/1/model.onnx"] = [Fault(status=status)]
    with pytest.raises(error):
        stores.fetch(tree, at(server, "m/"))
    assert world.slept == []


def test_a_server_that_says_nothing_is_not_waited_for(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match="no answer in time"):
            world.stores(timeout_seconds=0.05, retries=1).listing(parse_location(f"http://127.0.0.1:{port}/m"))
    assert world.slept == [0.5]


def test_a_file_is_one_of_its_tag(server: FileServer, world: World) -> None:
    stores = world.stores()
    place = at(server, "m/1/model.onnx")
    first = only_tree(stores, place)
    assert stores.fetch(first, place).path.name == "model.onnx"
    assert only_tree(stores, place).key == first.key
    server.files["m/1/model.onnx"] = MODEL[::-1]
    assert only_tree(stores, place).key != first.key


# ----------------------------------------------------------------------------------------------------------- redirects


def _as_if_public(monkeypatch: pytest.MonkeyPatch, server: FileServer) -> None:
    """The server's address counts as one of the internet; all others are what they are."""
    monkeypatch.setattr(Web, "is_public", staticmethod(lambda sock: sock.getpeername()[1] == server.server_port))


def test_a_public_host_may_not_lead_to_this_machine(
    server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_files() as private:
        private.files["secret"] = b"of a cloud's metadata"
        _as_if_public(monkeypatch, server)
        server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=f"{private.url}/secret")]
        with pytest.raises(NotAllowed, match=r"redirects to an address of this machine.*allow_private_redirects"):
            world.stores().listing(at(server, "m/1/model.onnx"))
        assert private.asked == []
        server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=f"{private.url}/secret")]
        listing = world.stores(allow_private_redirects=True).listing(at(server, "m/1/model.onnx"))
        assert listing.is_file
        assert len(private.asked) == 1


def test_an_operators_own_server_may_lead_anywhere(server: FileServer, world: World) -> None:
    with serving_files() as other:
        other.files["there"] = MODEL
        server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=f"{other.url}/there")]
        assert world.stores().listing(at(server, "m/1/model.onnx")).files[0].size == len(MODEL)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://user:key@127.0.0.1/x"])
def test_what_no_redirect_may_name(target: str, server: FileServer, world: World) -> None:
    server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=target)]
    with pytest.raises(NotAllowed, match="no URL of the web"):
        world.stores().listing(at(server, "m/1/model.onnx"))


def test_tls_is_not_left(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(Policy())
    hop = web._hop
    monkeypatch.setattr(web, "_hop", lambda method, url, *more: hop(method, url.replace("https:", "http:"), *more))
    server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=f"{server.url}/m/1/model.onnx")]
    with pytest.raises(NotAllowed, match="redirects to what is not https"):
        web.head(f"https://127.0.0.1:{server.server_port}/m/1/model.onnx")


def test_redirects_in_a_circle_end(server: FileServer, world: World) -> None:
    server.faults["HEAD", "m/1/model.onnx"] = [Fault(redirect=f"{server.url}/m/1/model.onnx")] * 99
    with pytest.raises(Unreachable, match="more than 8 redirects"):
        world.stores(retries=0).listing(at(server, "m/1/model.onnx"))


def test_credentials_go_to_no_other_host(world: World, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = "0" * 40
    with serving_files() as hub:
        tree = [{"type": "file", "path": "model.onnx", "size": 3, "oid": "f" * 40, "lfs": {"oid": "0", "size": 3}}]
        hub.files[f"api/models/o/n/tree/{commit}?recursive=true"] = json.dumps(tree).encode()
        hub.faults["GET", f"o/n/resolve/{commit}/model.onnx"] = [Fault(redirect=f"{server.url}/m/1/model.onnx")]
        stores = world.stores(sources={"hf://": {"endpoint": hub.url}})
        place = parse_location(f"hf://o/n@{commit}")
        with pytest.raises(Damaged):  # it is another file
            stores.fetch(only_tree(stores, place), place)
        assert [headers.get("Authorization") for _, _, headers in hub.asked] == ["Bearer hf_secret"] * 2
        assert "Authorization" not in server.gets("m/1/model.onnx")[0]
        assert "hf_secret" not in "".join(world.said)


# --------------------------------------------------------------------------------------------------------------- cache


def test_offline_serves_what_is_there_and_says_what_is_not(server: FileServer, world: World) -> None:
    stores = world.stores()
    trees = stores.listing(at(server, "m/")).versions()
    stores.fetch(trees[1], at(server, "m/"))
    asked = len(server.asked)
    offline = world.stores(offline=True)
    assert offline.listing(at(server, "m/")).versions() == trees
    assert offline.fetch(trees[1], at(server, "m/")).path.is_dir()
    with pytest.raises(NotThere, match=r"m/2: not in the cache .*stores\.offline is true"):
        offline.fetch(trees[2], at(server, "m/"))
    with pytest.raises(NotThere, match=r"stores\.offline is true"):
        offline.listing(at(server, "other/"))
    assert len(server.asked) == asked


@pytest.mark.parametrize("in_use", [True, False])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "about"])
def test_what_is_damaged_is_fetched_again(damage: str, in_use: bool, server: FileServer, world: World) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[1]
    lease = stores.fetch(tree, at(server, "m/"))
    file = lease.path / "model.onnx"
    if not in_use:
        lease.close()
    match damage:
        case "cut":
            os.truncate(file, 10)
        case "changed":
            file.write_bytes(MODEL[::-1])
        case "gone":
            file.unlink()
        case "about":
            (file.parents[1] / "tree.json").write_bytes(b"{")
    again = stores.fetch(tree, at(server, "m/"))
    assert (again.path / "model.onnx").read_bytes() == MODEL
    assert len(server.gets("m/1/model.onnx")) == 2


def test_a_cache_that_was_copied_is_read_once_and_taken(server: FileServer, world: World, tmp_path: Path) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[1]
    stores.fetch(tree, at(server, "m/"))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", world.folder, copy], check=True)
    there = world.stores(offline=True, cache={"folder": str(copy)})
    assert (there.fetch(tree, at(server, "m/")).path / "model.onnx").read_bytes() == MODEL
    assert str(copy) in str(there.cache.place(tree))


def test_a_cache_that_cannot_be_written_serves(
    server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = world.stores().listing(at(server, "m/")).versions()[1]
    world.stores().fetch(tree, at(server, "m/"))
    real = os.open

    def read_only(path: str, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    lease = world.stores(offline=True).fetch(tree, at(server, "m/"))
    assert (lease.path / "model.onnx").read_bytes() == MODEL


def test_the_limit_removes_what_was_used_longest_ago_and_nothing_in_use(server: FileServer, world: World) -> None:
    server.put("n", {f"{number}/x": os.urandom(100_000) for number in (1, 2, 3, 4)})
    stores = world.stores(cache={"folder": str(world.folder), "max_bytes": 330_000})
    place = at(server, "n/1/x"), at(server, "n/2/x"), at(server, "n/3/x"), at(server, "n/4/x")
    trees = [only_tree(stores, each) for each in place]
    used = stores.fetch(trees[0], place[0])
    stores.fetch(trees[1], place[1]).close()
    stores.fetch(trees[2], place[2]).close()
    for number, tree in enumerate(trees[:3]):
        os.utime(stores.cache.place(tree).parents[1] / "tree.json", (number, number))
    stores.fetch(trees[3], place[3]).close()
    assert [stores.cache.has(tree) for tree in trees] == [True, False, True, True]
    assert used.path.exists()
    server.put("n", {"5/x": os.urandom(400_000)})
    with pytest.raises(CacheFull, match=r"more than stores\.cache\.max_bytes"):
        stores.fetch(only_tree(stores, at(server, "n/5/x")), at(server, "n/5/x"))
    server.put("n", {"6/x": os.urandom(300_000)})
    with pytest.raises(CacheFull, match="is in use"):
        stores.fetch(only_tree(stores, at(server, "n/6/x")), at(server, "n/6/x"))


def test_a_lease_ends_with_whoever_has_it(server: FileServer, world: World) -> None:
    stores = world.stores()
    tree = stores.listing(at(server, "m/")).versions()[1]
    lease = stores.fetch(tree, at(server, "m/"))
    folder = stores.cache.place(tree).parent
    assert not stores.cache.discard(folder)
    del lease
    assert stores.cache.discard(folder)
    assert not folder.exists()


def test_two_at_once_fetch_once(server: FileServer, world: World) -> None:
    both = threading.Barrier(2)
    stores = [world.stores(), world.stores()]
    trees = [each.listing(at(server, "m/")).versions()[2] for each in stores]
    found: list[Path] = []

    def fetch(number: int) -> None:
        both.wait()
        found.append(stores[number].fetch(trees[number], at(server, "m/")).path)

    threads = [threading.Thread(target=fetch, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert len(server.gets("m/2/model.onnx")) == 1


_FETCHES = """
import os, sys
from tensorgate.gateway.config import StoresConfig
from tensorgate.gateway.contract.locations import parse_location
from tensorgate.gateway.stores.cache import Cache
from tensorgate.gateway.stores.stores import Stores
if sys.argv[3] == "settling":
    Cache.settle = lambda *_: os.kill(os.getpid(), 9)
stores = Stores(StoresConfig.model_validate({"cache": {"folder": sys.argv[1]}}))
place = parse_location(sys.argv[2])
stores.fetch(stores.listing(place).whole(), place)
"""


@pytest.mark.parametrize("when", ["receiving", "settling"])
def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(
    when: str, server: FileServer, world: World
) -> None:
    place = at(server, "m/2/model.onnx")
    started: list[subprocess.Popen[bytes]] = []
    if when == "receiving":
        kill = Fault(status=503, before=lambda: started[0].kill())
        server.faults["GET", "m/2/model.onnx"] = [Fault(cut=120_000), kill]
    started.append(subprocess.Popen([sys.executable, "-c", _FETCHES, world.folder, place.url, when]))
    assert started[0].wait() == -9
    stores = world.stores()
    tree = only_tree(stores, place)
    assert not stores.cache.has(tree)
    assert stores.fetch(tree, place).path.read_bytes() == LARGE
    ranges = [headers.get("Range") for headers in server.gets("m/2/model.onnx")]
    assert ranges == ([None, "bytes=120000-", "bytes=120000-"] if when == "receiving" else [None])


def test_a_file_whose_size_is_unknown_is_not_asked_for_beyond_its_end(server: FileServer, world: World) -> None:
    place = at(server, "m/1/")
    command = [sys.executable, "-c", _FETCHES, world.folder, place.url, "settling"]
    assert subprocess.run(command, check=False).returncode == -9
    stores = world.stores()
    assert (stores.fetch(only_tree(stores, place), place).path / "model.onnx").read_bytes() == MODEL
    assert len(server.gets("m/1/model.onnx")) == 1


def test_the_first_failure_is_told_and_ends_the_others(server: FileServer, world: World) -> None:
    refused, stores = threading.Event(), world.stores(connections=2)
    tree = stores.listing(at(server, "m/")).versions()[2]
    server.faults["GET", "m/2/model.onnx"] = [Fault(before=lambda: refused.wait(10))]
    server.faults["GET", "m/2/sub/labels.txt"] = [Fault(status=403, before=refused.set)]
    with pytest.raises(NotAllowed, match="labels"):
        stores.fetch(tree, at(server, "m/"))


def test_mirrors_stand_in_the_place_of_what_they_mirror(server: FileServer, world: World) -> None:
    sources = {"s3://models/": {"mirror": f"{server.url}/m/"}, "gs://a/": {"mirror": "gs://a/b/"}}
    stores = world.stores(sources=sources)
    place = parse_location("s3://models/1/model.onnx")
    tree = only_tree(stores, place)
    assert tree.url == "s3://models/1/model.onnx"
    assert stores.fetch(tree, place).path.read_bytes() == MODEL
    with pytest.raises(ValueError, match="in a circle"):
        stores.listing(parse_location("gs://a/x"))


def test_equal_files_of_two_places_are_one_tree(server: FileServer, world: World) -> None:
    server.put("copy", {"1/model.onnx": MODEL})
    stores = world.stores()
    stores.fetch(stores.listing(at(server, "m/")).versions()[1], at(server, "m/"))
    stores.fetch(stores.listing(at(server, "copy/")).versions()[1], at(server, "copy/"))
    assert server.gets("copy/1/model.onnx") == []
