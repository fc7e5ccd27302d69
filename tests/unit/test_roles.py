from __future__ import annotations

import time
from dataclasses import replace

import pytest

from freezeframe.judge.correlate.roles import assign_roles, serving_processes
from freezeframe.judge.model import Metric, Process, Socket

Role = Process.Role
PYTHON = "/usr/bin/python3.11"


def proc(pid: int, title: str = "", *, parent: int = 1, argv: str = "", exe: str = PYTHON, **known: object) -> Process:
    words = tuple(argv.split())
    return Process(
        pid=pid,
        parent_pid=parent,
        title=title or argv,
        comm=(title or "python3")[:15],
        exe=exe,
        argv=words,
        argv_source="own" if words and not title else "parent" if words else "",
        **known,  # type: ignore[arg-type]
    )


def listen(pid: int, port: int, *, host: str = "127.0.0.1", shared: tuple[int, ...] = ()) -> Socket:
    return Socket(family="tcp", state="LISTEN", local=f"{host}:{port}", pid=pid, shared_with=shared)


def connect(client: int, server: int, port: int, source: int) -> tuple[Socket, Socket]:
    ours, theirs = f"127.0.0.1:{source}", f"127.0.0.1:{port}"
    return (
        Socket(family="tcp", state="ESTAB", local=ours, remote=theirs, pid=client, peer_pid=server),
        Socket(family="tcp", state="ESTAB", local=theirs, remote=ours, pid=server, peer_pid=client, accepted=True),
    )


def engine(http: int, port: int, mode: str = "") -> tuple[Process, ...]:
    flags = f" --disaggregation-mode {mode}" if mode else ""
    return (
        proc(http, argv=f"python -m sglang.launch_server --port {port}{flags}"),
        proc(http + 1, "sglang::scheduler_TP0", parent=http),
        proc(http + 2, "sglang::detokenizer", parent=http),
    )


STACK = (
    proc(1, exe="/usr/lib/systemd/systemd", argv="/sbin/init"),
    *engine(100, 30001, "prefill"),
    *engine(200, 30002, "decode"),
    proc(300, "sglang::router"),
)
STACK_SOCKETS = (
    listen(100, 30001), listen(200, 30002), listen(300, 30000), listen(300, 29000),
    *connect(300, 100, 30001, 41001), *connect(300, 200, 30002, 41002),
)  # fmt: skip


def roles(processes: tuple[Process, ...], sockets: tuple[Socket, ...] = (), **known: object) -> dict[int, Process]:
    return {each.pid: each for each in assign_roles(processes, sockets, **known)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("process", "role", "product", "rank"),
    [
        (proc(9, "sglang::router"), Role.ROUTER, "sglang-router", ""),
        (proc(9, "smg::router"), Role.ROUTER, "smg", ""),
        (proc(9, exe="/usr/local/bin/smg", argv="smg launch"), Role.ROUTER, "smg", ""),
        (proc(9, exe="/usr/bin/amg"), Role.ROUTER, "smg", ""),
        (proc(9, exe="/opt/sgl-model-gateway"), Role.ROUTER, "sglang-router", ""),
        (proc(9, exe="/opt/sgl-router (deleted)"), Role.ROUTER, "sgl-router", ""),
        (proc(9, argv="python -m sglang_router.launch_router --port 1"), Role.ROUTER, "sglang-router", ""),
        (proc(9, argv="/venv/bin/python3.11 /venv/bin/vllm-router --port 1"), Role.ROUTER, "vllm-router", ""),
        (proc(9, "sglang::server"), Role.LAUNCHER, "sglang-router", ""),
        (proc(9, argv="python -u -m sglang.launch_server"), Role.ENGINE_HTTP, "sglang", ""),
        (proc(9, argv="python3.11 /venv/bin/sglang serve --port 1"), Role.ENGINE_HTTP, "sglang", ""),
        (proc(9, argv="python3 /venv/bin/vllm serve …"), Role.ENGINE_HTTP, "vllm", ""),
        (proc(9, argv="python3 -m vllm.entrypoints.openai.api_server"), Role.ENGINE_HTTP, "vllm", ""),
        (proc(9, "sglang::scheduler_DP1_PP0_TP3"), Role.SCHEDULER, "sglang", "DP1 PP0 TP3"),
        (proc(9, "sglang::scheduler_ATTN_CP0_MOE_DP1_TP0_EP0"), Role.SCHEDULER, "sglang", "ATTN_CP0 MOE_DP1 TP0 EP0"),
        (proc(9, "sglang::scheduler"), Role.SCHEDULER, "sglang", ""),
        (proc(9, "sglang::data_parallel_controller"), Role.DP_CONTROLLER, "sglang", ""),
        (proc(9, "sglang::tokenizer_worker:77"), Role.TOKENIZER_WORKER, "sglang", ""),
        (proc(9, "sglang::detokenizer_router"), Role.DETOKENIZER, "sglang", ""),
        (proc(9, "VLLM::EngineCore_DP1"), Role.SCHEDULER, "vllm", "DP1"),
        (proc(9, "VLLM::Worker_TP0"), Role.WORKER, "vllm", "TP0"),
        (proc(9, "mine::EngineCore"), Role.SCHEDULER, "vllm", ""),
        # Lookalikes.
        (proc(9, argv="python3 /venv/bin/vllm bench serve"), Role.OTHER, "", ""),
        (proc(9, argv="vi sglang.launch_server", exe="/usr/bin/vi"), Role.OTHER, "", ""),
        (proc(9, argv="bash -c …", exe="/usr/bin/bash"), Role.OTHER, "", ""),
        (proc(9, argv="python3 -m pytest sglang.launch_server"), Role.OTHER, "", ""),
        (proc(9, "notsglang::router"), Role.OTHER, "", ""),
        (proc(9, "sglang::routers"), Role.OTHER, "", ""),
    ],
)
def test_by_name(process: Process, role: Process.Role, product: str, rank: str) -> None:
    found = roles((process,))[9]
    assert (found.role, found.product, found.rank) == (role, product, rank)


@pytest.mark.parametrize("title", ["sglang::scheduler_TP0", "sglang::detokenizer", "sglang::data_parallel_controller",
                                   "sglang::tokenizer_worker:1", "sglang::router", "VLLM::EngineCore_DP0",
                                   "VLLM::Worker_TP0", "VLLM::APIServer_0"])  # fmt: skip
def test_the_cut_name_of_the_main_thread_says_the_same(title: str) -> None:
    full = proc(9, title)
    assert roles((full,))[9].role is roles((replace(full, title=""),))[9].role is not Role.OTHER


def test_an_engine_and_its_parts_are_one_family() -> None:
    found = roles(STACK, STACK_SOCKETS)
    assert [found[pid].role for pid in (1, 100, 101, 102, 300)] == [
        Role.OTHER, Role.ENGINE_HTTP, Role.SCHEDULER, Role.DETOKENIZER, Role.ROUTER,
    ]  # fmt: skip
    assert [found[pid].engine_pid for pid in (100, 101, 102, 200, 201, 300)] == [100, 100, 100, 200, 200, 0]
    assert [found[pid].disaggregation for pid in (100, 101, 200, 202, 300)] == [
        "prefill",
        "prefill",
        "decode",
        "decode",
        "",
    ]
    assert found[300].listening_ports == (29000, 30000)


def test_an_http_process_is_known_by_its_children_whatever_it_is_called() -> None:
    processes = (
        proc(50, argv="python serve_it.py"),
        proc(51, "sglang::data_parallel_controller", parent=50),
        proc(52, "sglang::scheduler_DP0_TP0", parent=51),
    )
    found = roles(processes)
    assert (found[50].role, found[50].product) == (Role.ENGINE_HTTP, "sglang")
    assert found[50].role_reason == "parent of sglang::scheduler_DP0_TP0"
    assert {each.engine_pid for each in found.values()} == {50}


def test_a_fork_that_still_shows_its_parents_command_line_is_no_second_engine() -> None:
    http, *parts = engine(100, 30001)
    found = roles((http, *parts, replace(http, pid=110, parent_pid=100)))
    assert (found[110].role, found[110].engine_pid) == (Role.WORKER, 100)


def test_what_a_wrapper_starts_is_the_engine_and_the_wrapper_a_launcher() -> None:
    wrapper = proc(99, argv="timeout … python -m sglang.launch_server", exe="/usr/bin/timeout")
    found = roles((wrapper, replace(proc(100, argv="python -m sglang.launch_server"), parent_pid=99)))
    assert [found[99].role, found[100].role] == [Role.LAUNCHER, Role.ENGINE_HTTP]


def test_an_untitled_helper_of_an_engine_is_kept_with_it() -> None:
    helper = proc(103, argv="python -c …", parent=100)
    found = roles((*STACK, helper))
    assert (found[103].role, found[103].engine_pid) == (Role.OTHER, 100)
    assert 103 in [each.pid for each in serving_processes((*STACK, helper))]


def test_clients_are_found_by_their_connections_and_others_are_not() -> None:
    others = (
        proc(400, argv="python harness.py"),
        proc(401, argv="python stray.py"),
        proc(402, exe="/usr/bin/prometheus", argv="prometheus"),
        proc(403, argv="python scrape.py"),
        proc(404, argv="python other.py"),
        proc(405, argv="/venv/bin/python -m freezeframe.agentd"),
    )
    sockets = (
        *STACK_SOCKETS,
        *connect(400, 300, 30000, 42000),
        *connect(401, 200, 30002, 42001),
        *connect(402, 300, 30000, 42002),
        *connect(403, 300, 29000, 42003),
        *connect(405, 300, 30000, 42004),
    )
    found = roles((*STACK, *others), sockets)
    assert [found[pid].role for pid in range(400, 406)] == [
        Role.CLIENT, Role.CLIENT, Role.OTHER, Role.OTHER, Role.OTHER, Role.OTHER,
    ]  # fmt: skip
    assert found[400].role_reason == "connects to the router (pid 300)"
    assert found[401].role_reason == "connects to the engine-http (pid 200)"
    serving = [each.pid for each in serving_processes((*STACK, *others), sockets)]
    assert serving == [100, 101, 102, 200, 201, 202, 300, 400, 401]


def test_the_metrics_port_of_the_flags_is_no_api_port() -> None:
    router = proc(300, argv="python -m sglang_router.launch_router --port 5000 --prometheus-port 5001")
    sockets = (listen(300, 5000), listen(300, 5001), *connect(400, 300, 5001, 42000), *connect(401, 300, 5000, 42001))
    found = roles((router, proc(400, argv="python a.py"), proc(401, argv="python b.py")), sockets)
    assert [found[400].role, found[401].role] == [Role.OTHER, Role.CLIENT]


def test_one_end_of_a_connection_is_enough() -> None:
    for keep in (0, 1):
        ends = connect(400, 300, 30000, 42000)
        found = roles((*STACK, proc(400, argv="python a.py")), (*STACK_SOCKETS, ends[keep]))
        assert found[400].role is Role.CLIENT


def test_a_proxy_in_front_and_its_clients() -> None:
    nginx = "/usr/sbin/nginx"
    others = (
        proc(500, "nginx: master process", exe=nginx),
        proc(501, "nginx: worker process", exe=nginx, parent=500),
        proc(502, "nginx: worker process", exe=nginx, parent=500),
        proc(503, argv="node agent.js", exe="/usr/bin/node"),
    )
    sockets = (
        *STACK_SOCKETS,
        listen(500, 80, shared=(501, 502)),
        *connect(501, 300, 30000, 43000),
        *connect(503, 501, 80, 43001),
    )
    found = roles((*STACK, *others), sockets)
    assert [found[pid].role for pid in (500, 501, 502, 503)] == [Role.PROXY, Role.PROXY, Role.PROXY, Role.CLIENT]
    assert {found[pid].product for pid in (500, 501, 502)} == {"nginx"}
    assert found[503].role_reason == "connects to the proxy (pid 501)"


def test_a_gateway_that_nobody_names_is_a_proxy_and_a_harness_with_a_status_page_is_none() -> None:
    gateway, harness, page = proc(500, exe="/opt/gw", argv="gw"), proc(501, argv="python h.py"), proc(502, exe="/opt/x")
    sockets = (
        *STACK_SOCKETS,
        listen(500, 8080),
        listen(501, 9000),
        *(each for n in range(3) for each in connect(500, 300, 30000, 43000 + n)),
        *(each for n in range(3) for each in connect(501, 500, 8080, 43100 + n)),
        *connect(502, 501, 9000, 43200),
    )
    found = roles((*STACK, gateway, harness, page), sockets)
    assert [found[pid].role for pid in (500, 501, 502)] == [Role.PROXY, Role.CLIENT, Role.OTHER]


def test_what_listens_where_a_router_connects_is_an_engine_but_for_known_services() -> None:
    others = (
        proc(600, exe="/opt/my-engine", argv="my-engine"),
        proc(601, exe="/usr/bin/redis-server", argv="redis-server"),
        proc(602, exe="/opt/my-engine", argv="my-engine"),
        proc(603, exe="/opt/my-engine", argv="my-engine", parent=600),
    )
    sockets = (
        *STACK_SOCKETS,
        *(listen(600 + n, 7000 + n) for n in range(3)),
        *(each for n in range(3) for each in connect(300, 600 + n, 7000 + n, 44000 + n)),
        # It registered with the router and keeps the connection.
        *connect(602, 300, 30000, 44100),
    )
    found = roles((*STACK, *others), sockets)
    assert [found[pid].role for pid in (600, 601, 602)] == [Role.ENGINE_HTTP, Role.OTHER, Role.ENGINE_HTTP]
    assert (found[600].product, found[600].role_reason) == ("", "listens where the router (pid 300) connects")
    assert found[603].engine_pid == 600


def test_a_routers_flags_tell_prefill_from_decode() -> None:
    router = proc(300, argv="python -m sglang_router.launch_router --prefill http://127.0.0.1:7000 8998 "
                            "--decode http://elsewhere:7001 --decode http://gpu-08:7002")  # fmt: skip
    engines = tuple(proc(700 + n, exe="/opt/e", argv="e") for n in range(3))
    sockets = (
        *(listen(700 + n, 7000 + n, host="0.0.0.0") for n in range(3)),
        *(each for n in (0, 1) for each in connect(300, 700 + n, 7000 + n, 44000 + n)),
    )
    found = roles((router, *engines), sockets)
    assert [found[700 + n].disaggregation for n in range(3)] == ["prefill", "decode", ""]


def test_a_gauge_tells_prefill_from_decode() -> None:
    gauge = Metric(name="sglang:num_running_reqs", labels=(("engine_type", "decode"),), pid=100)
    found = roles(engine(100, 30001), metrics=(gauge,))
    assert {each.disaggregation for each in found.values()} == {"decode"}


def test_supervisors_do_not_wait_and_a_script_that_starts_and_asks_an_engine_does() -> None:
    processes = (
        proc(10, argv="bash run.sh", exe="/usr/bin/bash"),
        proc(11, argv="python bench.py", parent=10),
        *(replace(each, parent_pid=11) if each.pid == 100 else each for each in engine(100, 30001)),
    )
    sockets = (listen(100, 30001), *connect(10, 100, 30001, 45000), *connect(11, 100, 30001, 45001))
    found = roles(processes, sockets)
    assert [found[10].role, found[11].role] == [Role.OTHER, Role.CLIENT]


def test_configuration_overrules() -> None:
    sockets = (*STACK_SOCKETS, *connect(400, 300, 30000, 42000))
    found = roles(
        (*STACK, proc(400, argv="python gw.py")), sockets, overrides={400: Role.PROXY, 300: Role.OTHER, 1: Role.CLIENT}
    )
    assert (found[400].role, found[400].role_reason) == (Role.PROXY, "configured")
    assert [found[1].role, found[300].role] == [Role.CLIENT, Role.OTHER]


def test_nothing_at_all() -> None:
    assert assign_roles((), ()) == ()
    loop = proc(5, argv="python a.py", parent=5)
    assert serving_processes((loop,), connect(5, 6, 1, 2)) == ()


def test_a_second_search_gives_the_same() -> None:
    sockets = (*STACK_SOCKETS, *connect(400, 300, 30000, 42000))
    once = assign_roles((*STACK, proc(400, argv="python a.py")), sockets)
    assert assign_roles(once, sockets) == once


def test_many_processes_and_sockets_take_no_time() -> None:
    clients = tuple(proc(1000 + n, argv="python a.py") for n in range(2000))
    sockets = [*STACK_SOCKETS]
    for n in range(10_000):
        sockets += connect(1000 + n % 2000, 300, 30000, 10_000 + n)
    begin = time.process_time()
    found = serving_processes((*STACK, *clients), sockets)
    assert len(found) == 2007
    assert time.process_time() - begin < 3.0


def test_connections_across_namespaces_and_published_ports_count_once_and_by_the_servers_own_port() -> None:
    from freezeframe.judge.correlate.roles import _Call, _calls  # noqa: PLC0415 - one test looks inside

    listener = Socket(family="tcp", state="LISTEN", local="0.0.0.0:8000", pid=1, inode=10, netns=8.0)
    outer = Socket(
        family="tcp", state="ESTAB", local="10.0.0.5:50000", remote="10.0.0.1:30000", pid=2, peer_pid=1, inode=20,
        peer_inode=11, netns=7.0,
    )  # fmt: skip
    inner = Socket(
        family="tcp", state="ESTAB", local="172.17.0.2:8000", remote="172.17.0.1:61000", pid=1, peer_pid=2, inode=11,
        peer_inode=20, netns=8.0, accepted=True,
    )  # fmt: skip
    for sockets in ((listener, outer, inner), (listener, inner, outer)):
        assert _calls(sockets) == {2: {_Call(server=1, port=8000): 1}}


def test_envoy_in_front_of_the_router_is_a_proxy() -> None:
    envoy = proc(500, "envoy", exe="/usr/local/bin/envoy")
    sockets = (*STACK_SOCKETS, listen(500, 10000), *connect(500, 300, 30000, 43000), *connect(503, 500, 10000, 43001))
    found = roles((*STACK, envoy, proc(503, argv="node agent.js", exe="/usr/bin/node")), sockets)
    assert (found[500].role, found[500].product, found[503].role) == (Role.PROXY, "envoy", Role.CLIENT)
    # Alone it passes on requests to nobody that serves a model.
    assert roles((envoy,), (listen(500, 10000),))[500].role is Role.OTHER


def test_ray_serve_its_proxy_replicas_and_clients() -> None:
    ray = (
        proc(600, "ray::ProxyActor"),
        proc(601, "ray::ServeReplica:default:Chat.handle_request"),
        proc(602, "ray::ServeController"),
        proc(603, argv="python harness.py"),
    )
    sockets = (listen(600, 8000), listen(601, 41000), *connect(600, 601, 41000, 43000), *connect(603, 600, 8000, 43001))
    found = roles(ray, sockets)
    assert [found[pid].role for pid in (600, 601, 602, 603)] == [Role.PROXY, Role.WORKER, Role.OTHER, Role.CLIENT]
    assert {found[pid].product for pid in (600, 601)} == {"ray-serve"}


@pytest.mark.parametrize(
    "argv",
    ["/venv/bin/python /venv/bin/uvicorn app:app --port 8000", "python -m uvicorn app:app", "python /bin/gunicorn app"],
)
def test_a_plain_service_is_an_engine_where_no_other_has_a_name(argv: str) -> None:
    service = proc(700, argv=argv)
    sockets = (listen(700, 8000), *connect(701, 700, 8000, 43001))
    found = roles((service, proc(701, argv="python harness.py")), sockets)
    assert (found[700].role, found[701].role) == (Role.ENGINE_HTTP, Role.CLIENT)
    assert found[700].role_reason.endswith("and no engine has a name")
    assert roles((*STACK, service), (*STACK_SOCKETS, listen(700, 8000)))[700].role is Role.OTHER
