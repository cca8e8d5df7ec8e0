// The least that a server can do with the bytes of an inference: it reads a request into memory and answers with the same
// bytes, over HTTP/1.1 and over gRPC, in one thread, with no model, no check and no worker. What a real server's CPU is above
// this one's is its own doing; the rest is the kernel's and the client's way of using it.
//
//   bare      prints two ports, of HTTP and of gRPC on the loopback address, and serves until it is killed
//
// It takes well-formed requests of at most BODY bytes with a Content-Length, as bin/loadgen sends them, and ends on others.
// Of gRPC it speaks what that client needs. A GET is answered with how many requests it has answered, as a v2 server's
// statistics are.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BUFFER = 32 << 10, BODY = 1 << 20, FRAME = 16384, PIECES = 1024, HEADS = 96, CREDIT = 8 << 20, EVENTS = 64 };
enum { DATA = 0, HEADERS = 1, SETTINGS = 4, WINDOW = 8, END_STREAM = 1, END_HEADERS = 4, ACK = 1 };

// An answer that waits to be written, in pieces: its heads lie in itself, its body in memory of its own.
typedef struct answer {
  struct answer *next;
  unsigned char *body;
  int pieces, at;
  struct iovec piece[2 * HEADS];
  unsigned char head[HEADS][256];
} answer;

typedef struct {
  int fd, grpc, listens;
  unsigned char buf[BUFFER];
  int r, w;               // buf[r:w] was read and is not used up
  unsigned char *body;    // of the request that is being read
  int got, want;          // bytes of it; over gRPC want grows with each frame
  int left;               // of the frame
  unsigned char frame[9]; // its header
  int open, greeted;      // a body or a frame is being read; the preface was
  int uncredited;
  answer *first, **last;
} conn;

static unsigned long answered;
static unsigned char *bodies[4096];
static int kept;
static answer *spare;

static void check(int good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

static unsigned char *take_body(void) {
  if (kept > 0) return bodies[--kept];
  unsigned char *b = malloc(BODY);
  check(b != NULL, "memory");
  return b;
}

static answer *take_answer(conn *c) {
  answer *a = spare;
  if (a != NULL) spare = a->next;
  else a = malloc(sizeof *a);
  check(a != NULL, "memory");
  a->next = NULL, a->body = NULL, a->pieces = a->at = 0;
  *c->last = a, c->last = &a->next;
  return a;
}

static void add(answer *a, void *bytes, int n) {
  check(a->pieces < 2 * HEADS, "an answer in too many pieces");
  a->piece[a->pieces++] = (struct iovec){bytes, (size_t)n};
}

static void drop(conn *c) {
  answer *a = c->first;
  c->first = a->next;
  if (c->first == NULL) c->last = &c->first;
  if (a->body != NULL) {
    check(kept < (int)(sizeof bodies / sizeof *bodies), "bodies");
    bodies[kept++] = a->body;
  }
  a->next = spare, spare = a;
}

// flush writes what the socket takes of all answers. -1: the connection is over.
static int flush(conn *c) {
  struct iovec out[PIECES];
  while (c->first != NULL) {
    int n = 0;
    for (answer *a = c->first; a != NULL && n + a->pieces - a->at <= PIECES; a = a->next) {
      memcpy(out + n, a->piece + a->at, (size_t)(a->pieces - a->at) * sizeof *out);
      n += a->pieces - a->at;
    }
    ssize_t wrote = writev(c->fd, out, n);
    if (wrote < 0) return errno == EAGAIN ? 0 : -1;
    while (wrote > 0) {
      struct iovec *p = c->first->piece + c->first->at;
      size_t part = (size_t)wrote < p->iov_len ? (size_t)wrote : p->iov_len;
      p->iov_base = (char *)p->iov_base + part, p->iov_len -= part, wrote -= (ssize_t)part;
      if (p->iov_len > 0) return 0; // the socket is full
      if (++c->first->at == c->first->pieces) drop(c);
    }
  }
  return 0;
}

// more reads once behind what is there: 1 when something came, 0 when nothing is there, -1 at the end.
static int more(conn *c) {
  if (c->r > 0) memmove(c->buf, c->buf + c->r, (size_t)(c->w - c->r)), c->w -= c->r, c->r = 0;
  ssize_t n = read(c->fd, c->buf + c->w, (size_t)(BUFFER - c->w));
  if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
  c->w += (int)n;
  return 1;
}

// fill reads the body up to want: from the buffer, then directly. As more, but 1 when it is whole.
static int fill(conn *c) {
  check(c->want <= BODY, "a body that is too large");
  int have = c->w - c->r < c->want - c->got ? c->w - c->r : c->want - c->got;
  memcpy(c->body + c->got, c->buf + c->r, (size_t)have);
  c->r += have, c->got += have;
  while (c->got < c->want) {
    ssize_t n = read(c->fd, c->body + c->got, (size_t)(c->want - c->got));
    if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
    c->got += (int)n;
  }
  return 1;
}

static void answer_http(conn *c, int get) {
  answer *a = take_answer(c);
  char *h = (char *)a->head[0];
  if (get) {
    char text[192];
    int n = snprintf(text, sizeof text, "{\"model_stats\":[{\"inference_stats\":{\"success\":{\"count\":%lu}},\"inference_count\":%lu,\"execution_count\":%lu}]}",
                     answered, answered, answered);
    add(a, h, snprintf(h, sizeof a->head[0], "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, text));
    return;
  }
  answered++;
  add(a, h, snprintf(h, sizeof a->head[0], "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", c->got));
  if (c->got > 0) add(a, c->body, c->got);
  a->body = c->body, c->body = NULL;
}

// serve_http takes all requests that are there: 0 when nothing more is, -1 at the end.
static int serve_http(conn *c) {
  for (;;) {
    if (!c->open) {
      char *end;
      while ((end = memmem(c->buf + c->r, (size_t)(c->w - c->r), "\r\n\r\n", 4)) == NULL) {
        check(c->w - c->r < BUFFER, "a head that is too long");
        int n = more(c);
        if (n <= 0) return n;
      }
      *end = 0; // strcasestr needs one
      char *head = (char *)c->buf + c->r, *length = strcasestr(head, "\r\ncontent-length:");
      c->r = (int)(end + 4 - (char *)c->buf);
      if (strncmp(head, "GET ", 4) == 0) {
        answer_http(c, 1);
        continue;
      }
      c->open = 1, c->got = 0, c->want = length != NULL ? atoi(length + 17) : 0, c->body = take_body();
    }
    int n = fill(c);
    if (n <= 0) return n;
    c->open = 0;
    answer_http(c, 0);
  }
}

static void put32(unsigned char *p, uint32_t v) { p[0] = v >> 24, p[1] = v >> 16, p[2] = v >> 8, p[3] = v; }

// frame writes a frame's header and gives how long it is.
static int frame(unsigned char *p, int length, int kind, int flags, uint32_t stream) {
  p[0] = length >> 16, p[1] = length >> 8, p[2] = length, p[3] = kind, p[4] = flags;
  put32(p + 5, stream);
  return 9;
}

// control queues a frame with a payload of some bytes.
static void control(conn *c, int kind, int flags, const void *payload, int n) {
  answer *a = take_answer(c);
  frame(a->head[0], n, kind, flags, 0);
  if (n > 0) memcpy(a->head[0] + 9, payload, (size_t)n);
  add(a, a->head[0], 9 + n);
}

static void answer_grpc(conn *c, uint32_t stream) {
  static const char first[] = "\x88\x00\x0c" "content-type\x10" "application/grpc", last[] = "\x00\x0b" "grpc-status\x01" "0";
  answer *a = take_answer(c);
  int heads = 0, n = sizeof first - 1;
  answered++;
  frame(a->head[heads], n, HEADERS, END_HEADERS, stream);
  memcpy(a->head[heads] + 9, first, (size_t)n);
  add(a, a->head[heads++], 9 + n);
  for (int at = 0; at < c->got; at += n) { // the message comes back with its prefix
    n = c->got - at < FRAME ? c->got - at : FRAME;
    add(a, a->head[heads], frame(a->head[heads], n, DATA, 0, stream));
    add(a, c->body + at, n);
    heads++;
  }
  n = sizeof last - 1;
  frame(a->head[heads], n, HEADERS, END_HEADERS | END_STREAM, stream);
  memcpy(a->head[heads] + 9, last, (size_t)n);
  add(a, a->head[heads], 9 + n);
  a->body = c->body, c->body = NULL;
}

// greet answers the client's preface with settings: frames of any size, windows that never fill.
static void greet(conn *c) {
  static const unsigned char settings[] = {0, 4, 0x40, 0, 0, 0, 0, 5, 0, 0xff, 0xff, 0xff}, window[] = {0x40, 0, 0, 0};
  c->r += 24, c->greeted = 1;
  control(c, SETTINGS, 0, settings, sizeof settings);
  control(c, WINDOW, 0, window, sizeof window);
}

// begin takes a frame's header.
static void begin(conn *c) {
  memcpy(c->frame, c->buf + c->r, 9);
  c->r += 9, c->left = c->frame[0] << 16 | c->frame[1] << 8 | c->frame[2], c->open = 1;
  if (c->frame[3] == SETTINGS && (c->frame[4] & ACK) == 0) control(c, SETTINGS, ACK, NULL, 0);
  if (c->frame[3] != DATA) return;
  if (c->body == NULL) c->body = take_body(), c->got = c->want = 0;
  c->want += c->left;
  if ((c->uncredited += c->left) < CREDIT) return;
  unsigned char n[4];
  put32(n, (uint32_t)c->uncredited);
  control(c, WINDOW, 0, n, sizeof n);
  c->uncredited = 0;
}

// serve_grpc takes all frames that are there, as serve_http. A client of one thread sends the DATA of one call after the other.
static int serve_grpc(conn *c) {
  for (;;) {
    while (c->w - c->r < (c->greeted ? 9 : 24) && !c->open) {
      int n = more(c);
      if (n <= 0) return n;
    }
    if (!c->greeted) {
      greet(c);
      continue;
    }
    if (!c->open) begin(c);
    if (c->frame[3] != DATA) {
      while (c->left > 0) {
        int n = c->r < c->w ? 1 : more(c);
        if (n <= 0) return n;
        n = c->w - c->r < c->left ? c->w - c->r : c->left;
        c->r += n, c->left -= n;
      }
    } else {
      int n = fill(c);
      if (n <= 0) return n;
      if (c->frame[4] & END_STREAM) answer_grpc(c, (uint32_t)c->frame[5] << 24 | c->frame[6] << 16 | c->frame[7] << 8 | c->frame[8]);
    }
    c->open = 0;
  }
}

static void watch(int epoll, conn *c, uint32_t events) {
  struct epoll_event e = {.events = events, .data = {.ptr = c}};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e) == 0, "epoll_ctl");
}

static conn *fresh(int fd, int grpc, int listens) {
  conn *c = calloc(1, sizeof *c);
  check(c != NULL, "memory");
  c->fd = fd, c->grpc = grpc, c->listens = listens, c->last = &c->first;
  return c;
}

static void listens(int epoll, int grpc) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, 128) == 0, "listen");
  check(getsockname(fd, (struct sockaddr *)&at, &n) == 0, "getsockname");
  printf("%d\n", ntohs(at.sin_port));
  watch(epoll, fresh(fd, grpc, 1), EPOLLIN);
}

static void admit(int epoll, conn *c) {
  int fd = accept4(c->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
  check(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "accept");
  watch(epoll, fresh(fd, c->grpc, 0), EPOLLIN | EPOLLOUT | EPOLLET);
}

static void end(conn *c) {
  close(c->fd);
  while (c->first != NULL) drop(c);
  if (c->body != NULL) bodies[kept++] = c->body;
  free(c);
}

int main(void) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  check(epoll >= 0, "epoll");
  listens(epoll, 0);
  listens(epoll, 1);
  fflush(stdout);
  for (;;) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, -1);
    check(n >= 0 || errno == EINTR, "epoll_wait");
    for (int i = 0; i < n; i++) {
      conn *c = events[i].data.ptr;
      if (c->listens) {
        admit(epoll, c);
      } else {
        int served = c->grpc ? serve_grpc(c) : serve_http(c);
        if (flush(c) < 0 || served < 0) end(c);
      }
    }
  }
}
