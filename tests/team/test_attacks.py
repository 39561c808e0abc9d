"""A hostile machine of the team, which has its own key and sends any message with it. The server refuses
messages in the name of another machine, and messages that the server itself is made to send prove nothing."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace

from cortexfs.core import wire
from cortexfs.core.hostcalls import Capabilities
from cortexfs.team import keys, subjects
from cortexfs.team.directory import FACTS, INCARNATION, TOKEN
from cortexfs.team.joining import Invitation
from cortexfs.team.messages import MAX_DIRECTORY, MAX_ENTRY, NUMBER, CallBegin, RemoteObject
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery, Word
from cortexfs.team.places import Member, TeamFacts
from tests.team.machines import Machine, member_of, prover
from tests.waiting import awaited

TOOL = "text.word_count"
ARGUMENT = b'{"text":"a b"}'


class Hostile(Client):
    """A client that records the server's refusals."""

    def __init__(self, *about: Any) -> None:
        self.refused: list[str] = []
        super().__init__(*about)

    def _hear(self, said: Any) -> None:
        if isinstance(said, Word) and said.name == "-ERR":
            self.refused.append(said.text.decode())
        else:
            super()._hear(said)

    async def is_refused(self, subject: str, data: bytes = b"x", reply: str = "") -> None:
        """Publish the data, and wait for the refusal."""
        self.publish(subject, data, reply)
        await awaited(
            lambda: self.refused, lambda seen: any(f'Publish to "{subject}"' in each for each in seen)
        )

    async def hears_nothing(self, subject: str) -> None:
        self.subscribe(subject, lambda delivery: pytest.fail(f"heard {delivery}"))
        wanted = f'Subscription to "{subject}"'
        await awaited(lambda: self.refused, lambda seen: any(wanted in each for each in seen))


@contextlib.asynccontextmanager
async def hostile(member: Member) -> AsyncIterator[Hostile]:
    """Yields a client that has the machine's key, beside the machine's own link."""
    account = Account(keys.Key.of_seed(member.seed), member.token, member.authority)
    client = Hostile("hostile", member.servers, account, f"{subjects.inbox(member.machine)}.x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await awaited(lambda: client.is_connected)
        yield client
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def exported(machines: dict[str, Machine]) -> str:
    """Export a tool of the box to root of the laptop; returns its name."""
    machines["box"].team("export", f"tool/{TOOL}", "--to", "root@laptop", "--as", "daemon")
    machines["laptop"].sees(f"tool/{TOOL}+box")
    return TOOL


def runs(machine: Machine) -> int:
    """Returns the number of runs of its daemon."""
    return int(machine.ctx.status["runs"].split(", ")[1].split(" ")[0])


async def call(machine: Machine) -> None:
    """Make an allowed call; when it ends, the box has received all earlier messages."""
    done = await trio.to_thread.run_sync(lambda: machine.ctx.call(f"{TOOL}+box", ARGUMENT))
    assert done.status == 0, done


async def incarnation(client: Client) -> bytes:
    """Returns the word that each call of the box has to contain."""
    return keys.unsealed(await last(client, subjects.entry("box", *INCARNATION)))


def begin(word: bytes, run: str = "", user: str = "root") -> bytes:
    made = CallBegin(run or secrets.token_hex(16), user, "", 0, [ARGUMENT], {}, word)
    return msgspec.msgpack.encode(made)


async def test_a_machine_speaks_as_no_other(laptop: Machine) -> None:
    async with hostile(member_of(laptop)) as client:
        await client.is_refused(subjects.call("box", "third", "tool", TOOL))
        await client.is_refused(subjects.run("box", "third", "0" * 32))
        await client.is_refused(subjects.entry("box", "tool", TOOL))
        await client.is_refused(subjects.live("box"))
        await client.is_refused(subjects.entry("box", *FACTS))
        await client.is_refused(subjects.joined("UX"))
        await client.is_refused(subjects.join("UX"))


async def test_a_machine_hears_nothing_for_others(laptop: Machine) -> None:
    async with hostile(member_of(laptop)) as client:
        others = (">", "ctx.>", "ctx.run.box.>", "ctx.run.*.laptop.*", "_INBOX.>", "$JS.>", "$SYS.>")
        joins = (subjects.JOINS, "ctx.joined.*")
        for subject in (*others, *joins, subjects.calls("box"), f"{subjects.inbox('box')}.*"):
            await client.hears_nothing(subject)


async def test_a_machine_makes_no_streams_and_no_consumers(laptop: Machine) -> None:
    # A consumer could send the messages of a stream to any subject.
    directory = subjects.DIRECTORY
    async with hostile(member_of(laptop)) as client:
        streams = [f"STREAM.{verb}" for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE", "MSG.GET")]
        for verb in ("CONSUMER.CREATE", *streams):
            await client.is_refused(f"$JS.API.{verb}.{directory}", b"{}")
        await client.is_refused(f"$JS.API.CONSUMER.CREATE.{directory}.x", b"{}")
        await client.is_refused("$JS.API.STREAM.CREATE.mine", b"{}")
        await client.is_refused("$SYS.REQ.SERVER.PING")


async def test_what_the_server_is_made_to_say_is_no_call(
    laptop: Machine, box: Machine, exported: str
) -> None:
    # The server answers on any subject that a client names, and here the subject is that of a call.
    member = member_of(laptop)
    key = keys.Key.of_seed(member.seed)
    before = runs(box)
    forged = subjects.call("box", "box", "tool", TOOL)
    own = subjects.entry("laptop", "tool", "bait")
    async with hostile(member) as client:
        word = begin(await incarnation(client))
        for data in (word, keys.seal(key, forged, word), prover(laptop, box)(forged, word)):
            client.publish(own, data, f"{subjects.inbox('laptop')}.x.a")
            asked = msgspec.json.encode({"last_by_subj": own})
            client.publish(subjects.DIRECT, asked, forged)
            # Here the answer looks like the box's entry of its own tool.
            client.publish(subjects.DIRECT, asked, subjects.entry("box", "tool", TOOL))
            # Here the answer looks like the team's statement that the box is no longer a member.
            facts = subjects.entry("box", *FACTS)
            said = msgspec.msgpack.encode(TeamFacts([], ["box"]))
            client.publish(own, keys.seal(key, facts, said))
            client.publish(subjects.DIRECT, asked, facts)
        await call(laptop)
        client.publish(own, b"")
    assert runs(box) == before + 1


async def test_a_call_runs_once_and_in_its_time(laptop: Machine, box: Machine, exported: str) -> None:
    member = member_of(laptop)
    prove, before = prover(laptop, box), runs(box)
    subject = subjects.call("box", "laptop", "tool", TOOL)
    async with hostile(member) as client:
        word = await incarnation(client)
        once = prove(subject, begin(word, "ab" * 16))
        late = prove(subject, begin(word), time.time() - 3600)
        early = prove(subject, begin(word), time.time() + 3600)
        elsewhere = prove(subjects.call("box", "laptop", "tool", "shell.exec"), begin(word))
        other = prove(subject, begin(bytes(16)))
        for data in (once, once, once, late, early, elsewhere, other, once[:-1], b"", b"\0" * 200):
            client.publish(subject, data)
        await call(laptop)
        await awaited(lambda: runs(box), lambda seen: seen == before + 2)


async def test_a_call_is_taken_by_no_later_life_of_a_link(
    laptop: Machine, box: Machine, exported: str
) -> None:
    # abi.md 14.13
    member = member_of(laptop)
    prove, link = prover(laptop, box), box.link()
    subject = subjects.call("box", "laptop", "tool", TOOL)
    async with hostile(member) as client:
        word = await incarnation(client)
        once = prove(subject, begin(word))
        before = runs(box)
        client.publish(subject, once)
        await awaited(lambda: runs(box), lambda seen: seen == before + 1)
        os.kill(link, signal.SIGKILL)  # the server ends with it
        await awaited(lambda: laptop.ctx.call(f"{TOOL}+box", ARGUMENT).status, lambda seen: seen == 0)
        await awaited(lambda: client.is_connected)
        assert await incarnation(client) != word
        before = runs(box)
        client.publish(subject, once)
        await call(laptop)
    assert runs(box) == before + 1


async def test_a_machine_may_no_more_than_its_export(laptop: Machine, box: Machine, exported: str) -> None:
    # A machine may claim any name of a user, but the export decides.
    member = member_of(laptop)
    prove, before = prover(laptop, box), runs(box)
    async with hostile(member) as client:
        word = await incarnation(client)
        of_others = [(TOOL, begin(word, user=user)) for user in ("nobody", "*", "root\0", "")]
        of_runs = [(TOOL, begin(word, run)) for run in ("../../x", "A" * 32)]
        unexported = [(name, begin(word)) for name in ("shell.exec", "../tool/shell.exec")]
        for name, said in (*of_others, *of_runs, *unexported):
            subject = subjects.call("box", "laptop", "tool", name)
            client.publish(subject, prove(subject, said))
        await call(laptop)
    assert runs(box) == before + 1


async def test_garbage_ends_nothing(laptop: Machine, box: Machine, exported: str) -> None:
    member = member_of(laptop)
    key, before = keys.Key.of_seed(member.seed), box.link()
    async with hostile(member) as client:
        for size in (0, 1, 3, 4, 5, 71, 72, 73, 4096, 1 << 20):
            data = secrets.token_bytes(size)
            for subject in (
                subjects.call("box", "laptop", "tool", TOOL),
                subjects.run("box", "laptop", "0" * 32),
                subjects.entry("laptop", "tool", "garbage"),
                subjects.live("laptop"),
            ):
                client.publish(subject, data)
                client.publish(subject, keys.seal(key, subject, data))
                client.publish(subject, prover(laptop, box)(subject, data))
        await call(laptop)
    assert box.link() == before


def odd_objects() -> list[tuple[str, bytes]]:
    """Descriptions of objects that no honest machine sends, with their subjects."""
    plain = RemoteObject("laptop", "tool", "odd", "xxxx", b"{}", Capabilities(), None, False, {})
    model = replace(plain, class_="model", name="odd/m")
    said = [
        *(replace(plain, timeout=number) for number in (math.nan, math.inf, -math.inf, -1.0)),
        *(replace(plain, schema=text) for text in (b'{"a":"\xff"}', b"[]", b"[" * 5000)),
        replace(plain, schema=b'{"properties":5}', dry_run_flag=True),
        *(replace(model, extra={"limit": text, "cap": "\0"}) for text in ("\u00b2", "9" * 5000)),
        replace(plain, class_="agent", extra={"cap": "\x1b[2J vision \u00b2"}),
    ]
    packed = [(subjects.entry("laptop", one.class_, one.name), msgspec.msgpack.encode(one)) for one in said]
    text = msgspec.msgpack.encode(plain).replace(b"xxxx", b"\xff\xfe\xff\xfe")
    return [*packed, (subjects.entry("laptop", "tool", "odd"), text)]


async def test_no_word_about_an_object_ends_a_link_or_a_daemon(
    laptop: Machine, box: Machine, exported: str
) -> None:
    member = member_of(laptop)
    key, before = keys.Key.of_seed(member.seed), (box.link(), laptop.link())
    async with hostile(member) as client:

        def say(subject: str, data: bytes) -> None:
            client.publish(subject, keys.seal(key, subject, data))

        for number, (subject, data) in enumerate(odd_objects()):
            say(subject, data)
            # The daemon shows this object only after it has handled the earlier message.
            name = f"behind{number}"
            behind = RemoteObject("laptop", "tool", name, "", b"{}", Capabilities(), None, False, {})
            again = partial(say, subjects.entry("laptop", "tool", name), msgspec.msgpack.encode(behind))
            await trio.to_thread.run_sync(box.shows, f"tool/{name}+laptop", again)
            for each in (subject, subjects.entry("laptop", "tool", name)):
                say(each, b"")
            await trio.to_thread.run_sync(box.sees_no, f"tool/{name}+laptop")
    await call(laptop)
    assert (box.link(), laptop.link()) == before


async def test_no_subject_that_the_server_is_made_to_say_ends_a_link(
    laptop: Machine, box: Machine, exported: str
) -> None:
    member, before = member_of(laptop), box.link()
    own = subjects.entry("laptop", "tool", "bait")
    asked = msgspec.json.encode({"last_by_subj": own})
    odd = ("run.box.x", "run.box.a.b.c.d", "call.box.x", "call.box.a.b.c.d.e", "live.Evil\x1b[31m", "dir.x")
    async with hostile(member) as client:
        client.publish(own, b"x", f"{subjects.inbox('laptop')}.x.a")
        for subject in odd:
            client.publish(subjects.DIRECT, asked, f"ctx.{subject}")
        await call(laptop)
        client.publish(own, b"")
    assert box.link() == before
    assert [one["machine"] for one in box.status["machines"]] == ["box", "laptop"]


async def test_the_directory_has_an_end(laptop: Machine) -> None:
    most = MAX_DIRECTORY // MAX_ENTRY + 1
    baits = [subjects.entry("laptop", "tool", f"bait{number}") for number in range(most)]
    async with hostile(member_of(laptop)) as client:
        said = [(await client.request(each, b"x" * MAX_ENTRY))[0].data for each in baits]
        for each in baits:
            client.publish(each, b"")
        await last(client, baits[-1])
    assert b"error" not in said[0]
    assert b"maximum bytes exceeded" in said[-1]


async def last(client: Client, subject: str) -> bytes:
    """Returns the directory's entry of this subject."""
    asked = msgspec.json.encode({"last_by_subj": subject})
    return (await client.request(subjects.DIRECT, asked))[0].data


async def test_a_machine_stays_known(laptop: Machine, box: Machine) -> None:
    member = member_of(laptop)
    own, token = subjects.entry("laptop", "tool", "bait"), subjects.entry("box", *TOKEN)
    asked = msgspec.json.encode({"last_by_subj": own})
    async with hostile(member) as client:
        said = await last(client, token)
        heard: list[bytes] = []
        client.subscribe(token, lambda delivery: heard.append(delivery.data))
        client.publish(own, b"bait")
        while await last(client, own) != b"bait":
            await trio.lowlevel.checkpoint()
        client.publish(subjects.DIRECT, asked, token)  # the answer would replace the token of the box
        await awaited(lambda: heard, lambda all_: b"bait" in all_ and all_[-1] == said)
        while await last(client, token) != said:  # subscribers get it before it is stored
            await trio.lowlevel.checkpoint()
        client.publish(own, b"")


async def test_a_machine_says_nothing_about_where_things_are(laptop: Machine, box: Machine) -> None:
    # abi.md 14.4: the program that PATH finds would be run as a user of the box
    await trio.to_thread.run_sync(
        box.team, "export", "tool/show.env", "--to", "root@laptop", "--as", "daemon"
    )
    member, run, heard = member_of(laptop), secrets.token_hex(16), bytearray()
    subject = subjects.call("box", "laptop", "tool", "show.env")
    given = {
        b"PATH": b"/evil",
        b"HOME": b"/evil",
        b"TMPDIR=/evil": b"",
        wire.UNDER: b"/evil",
        b"TZ": b"Asia/X",
    }
    ended = trio.Event()

    def hear(delivery: Delivery) -> None:
        for kind, payload in wire.Splitter().feed(delivery.data[NUMBER.size :]):
            heard.extend(payload)
            if kind == wire.EXIT:
                ended.set()

    await awaited(lambda: "show.env" in str(box.status["exports"]))
    async with hostile(member) as client:
        client.subscribe(subjects.run("laptop", "box", run), hear)
        begun = CallBegin(run, "root", "", 0, [b"{}"], given, await incarnation(client))
        client.publish(subject, prover(laptop, box)(subject, msgspec.msgpack.encode(begun)))
        await awaited(ended.is_set)
    assert b"Asia/X" in heard
    assert b"/evil" not in heard


async def test_a_token_is_good_for_joining_alone(box: Machine) -> None:
    invitation = Invitation.read((await trio.to_thread.run_sync(box.team, "init")).stdout)
    account = Account(invitation.key, invitation.token, pin=invitation.pin)
    client = Hostile("guest", invitation.servers, account, "")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await awaited(lambda: client.is_connected)
        await client.is_refused(subjects.call("box", "laptop", "tool", TOOL))
        await client.is_refused(subjects.join("UX"))
        await client.is_refused(subjects.DIRECT)
        await client.hears_nothing(subjects.ENTRIES)
        await client.hears_nothing(subjects.LIVES)
        answers: list[bytes] = []
        public = invitation.key.public
        client.subscribe(subjects.joined(public), lambda delivery: answers.append(delivery.data))
        for bad in (b"[]", b'{"machine":"\xff"}', b'{"x":' + b"[" * 5000):
            client.publish(subjects.join(public), bad)
            await awaited(lambda: answers, bool)
            assert b"the request cannot be read" in answers.pop()
        nursery.cancel_scope.cancel()


async def test_a_stranger_without_a_key_is_nobody(box: Machine) -> None:
    member = member_of(box)
    stranger = keys.Key.new(keys.USER)
    for token in (member.token, ""):  # everybody can read the machine's token, but not its key
        account = Account(stranger, token, member.authority)
        await _is_nobody(Client("stranger", member.servers, account, "_INBOX.x"))


async def _is_nobody(client: Client) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await awaited(lambda: client.problem, lambda seen: "Authorization Violation" in seen)
        nursery.cancel_scope.cancel()
