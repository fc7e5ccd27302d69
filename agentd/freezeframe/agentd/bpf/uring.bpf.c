/* SPDX-License-Identifier: GPL-2.0-only */
/* Processes whose sockets io_uring serves: system calls tell nothing of these bytes. */

/* tgid -> number of requests to a socket. Inserted here; read, and deleted after exit, by user space. */
BPF_TABLE("lru_hash", u32, u64, uring_sockets, 1024);

#ifdef SUBMIT_SQE
TRACEPOINT_PROBE(io_uring, io_uring_submit_sqe) {
#else
TRACEPOINT_PROBE(io_uring, io_uring_submit_req) {
#endif
  switch (args->opcode) {
  case 9: case 10: case 13: case 16: case 26: case 27: case 47: case 48:
    /* sendmsg, recvmsg, accept, connect, send, recv, send_zc, sendmsg_zc */
    break;
  default:
    return 0;
  }
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  uring_sockets.increment(tgid);
  return 0;
}
