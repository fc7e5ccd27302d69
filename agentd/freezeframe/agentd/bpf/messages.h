/* SPDX-License-Identifier: GPL-2.0-only */
/* What the first bytes of a message say it is. */
#ifndef FREEZEFRAME_MESSAGES_H
#define FREEZEFRAME_MESSAGES_H

enum message { OTHER_BYTES = 0, HTTP_REQUEST = 1, HTTP_RESPONSE = 2, HTTP2_PREFACE = 3, TLS_HANDSHAKE = 4 };

#define WORD4(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

static __always_inline u8 message_of(const u8 *b) {
  u32 first = *(u32 *)b, second = *(u32 *)(b + 4);
  switch (first) {
  case WORD4('G', 'E', 'T', ' '):
  case WORD4('P', 'U', 'T', ' '):
    return HTTP_REQUEST;
  case WORD4('P', 'O', 'S', 'T'):
  case WORD4('H', 'E', 'A', 'D'):
    return b[4] == ' ' ? HTTP_REQUEST : OTHER_BYTES;
  case WORD4('P', 'A', 'T', 'C'):
    return b[4] == 'H' && b[5] == ' ' ? HTTP_REQUEST : OTHER_BYTES;
  case WORD4('D', 'E', 'L', 'E'):
    return b[4] == 'T' && b[5] == 'E' && b[6] == ' ' ? HTTP_REQUEST : OTHER_BYTES;
  case WORD4('O', 'P', 'T', 'I'):
  case WORD4('C', 'O', 'N', 'N'):
    return (second == WORD4('O', 'N', 'S', ' ') || second == WORD4('E', 'C', 'T', ' ')) ? HTTP_REQUEST : OTHER_BYTES;
  case WORD4('H', 'T', 'T', 'P'):
    return b[4] == '/' && b[5] == '1' && b[6] == '.' && b[8] == ' ' ? HTTP_RESPONSE : OTHER_BYTES;
  case WORD4('P', 'R', 'I', ' '):
    return second == WORD4('*', ' ', 'H', 'T') ? HTTP2_PREFACE : OTHER_BYTES;
  }
  /* Handshake record, TLS 1.x, ClientHello or ServerHello. */
  if (b[0] == 0x16 && b[1] == 0x03 && (b[5] == 1 || b[5] == 2))
    return TLS_HANDSHAKE;
  return OTHER_BYTES;
}

static __always_inline u16 status_of(const u8 *b) {
  return (b[9] - '0') * 100 + (b[10] - '0') * 10 + (b[11] - '0');
}

#endif
