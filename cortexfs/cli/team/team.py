"""`ctx team`: one tree over many machines. `init` and `join` make a machine a member, and `leave` ends that.
`export` says who elsewhere may use which objects of this machine, and `status` shows the team.

Rules: these commands write the files of team/places.py and have the daemon read them. Only the daemon's link
talks to other machines, except for the one request of a joining machine. A token is printed once, and no
other secret ever is.
"""

from __future__ import annotations

from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag

_NAME = arg("--name", "MACHINE", "this machine's name in the team (default: its host name)")

_SERVER = (
    arg("--listen", "HOST:PORT", "where its server listens (default: 0.0.0.0:4222)"),
    arg(
        "--address",
        "HOST",
        "a name or address by which others reach this machine; may be repeated (default: its host name)",
        action="append",
    ),
)

COMMANDS = {
    "team": Command(
        verbs={
            "init": Command(
                "team.membership.init",
                (
                    arg("--team", "NAME", "the team's name (default: team)"),
                    _NAME,
                    *_SERVER,
                    flag("--server", "print a token with which a machine may be a server, too"),
                    *MOUNTED,
                ),
                ("ctx team init --address 192.168.1.20",),
                "begin a team on this machine, or print another token for it",
            ),
            "join": Command(
                "team.membership.join",
                (
                    arg("token", "TOKEN", "the token that ctx team init printed; - reads it"),
                    _NAME,
                    flag("--server", "be a server of the team, too: with three, one may be away"),
                    *_SERVER,
                    *MOUNTED,
                ),
                ("ctx team join ctx1-kdk...", "ctx team join --server --address 192.168.1.21 ctx1-kdk..."),
                "have this machine join the team of a token",
            ),
            "export": Command(
                "team.exports.export",
                (
                    arg(
                        "exported",
                        "OBJECT",
                        "a tool, model or agent, as tool/make (default: list all)",
                        nargs="?",
                    ),
                    arg(
                        "--to",
                        "USER@MACHINE",
                        "who may call it, * for every user or machine; may be repeated",
                        action="append",
                    ),
                    arg(
                        "--as",
                        "USER",
                        "run it as this user here, not as the user of team.map",
                        dest="as_user",
                    ),
                    arg(
                        "--agents",
                        "AGENT",
                        "serve agents there, too, as far as the policy of this agent here goes",
                    ),
                    flag("--stop", "stop exporting it"),
                    JSON,
                    *MOUNTED,
                ),
                (
                    "ctx team export tool/make --to alice@laptop --as alice",
                    "ctx team export tool/make --stop",
                ),
                "let others call an object of this machine",
            ),
            "status": Command(
                "team.live.status",
                (JSON, *MOUNTED),
                ("ctx team status",),
                "show the team, as this machine sees it",
            ),
            "leave": Command(
                "team.membership.leave",
                (
                    flag("--end", "end the team, where it was begun here"),
                    arg("--machine", "NAME", "on the machine that began the team: remove this machine"),
                    *MOUNTED,
                ),
                ("ctx team leave", "ctx team leave --machine laptop"),
                "leave the team",
            ),
        },
    )
}
