// What the process says: the backends' log lines, faults of backends, and last words when a backend ends the process.
// A line is a JSON record on stderr, as the worker's own log writes them, written at once: what was said before a crash
// is not lost.
#include "private.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

bool host_verbose;

// Whose function the thread is in; "" for none. Plain arrays, so that a signal handler may read them.
static _Thread_local char in_backend[128], in_model[256];
static _Thread_local const char *in_function;

void entered(TRITONBACKEND_Backend *backend, TRITONBACKEND_Model *model, const char *function) {
  snprintf(in_backend, sizeof in_backend, "%s", backend->name);
  snprintf(in_model, sizeof in_model, "%s", model != NULL ? model->spec.name : "");
  in_function = function;
}

void left(void) { in_function = NULL; }

// append puts a text into a JSON string, as far as there is room. It calls nothing, for signal handlers.
static size_t append(char *to, size_t at, size_t room, const char *text, bool plain) {
  static const char digits[] = "0123456789abcdef";
  for (; *text != '\0' && at + 8 < room; text++) {
    unsigned char c = (unsigned char)*text;
    if (plain || (c >= 0x20 && c != '"' && c != '\\')) {
      to[at++] = (char)c;
    } else if (c == '"' || c == '\\') {
      to[at++] = '\\';
      to[at++] = (char)c;
    } else {
      const char escaped[] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
      memcpy(to + at, escaped, sizeof escaped);
      at += sizeof escaped;
    }
  }
  return at;
}

static void say(const char *level, const char *text, const char *file, int line) {
  char record[8192], number[16];
  size_t at = 0, room = sizeof record - 64;
  at = append(record, at, room, "{\"level\":\"", true);
  at = append(record, at, room, level, true);
  at = append(record, at, room, "\",\"msg\":\"", true);
  at = append(record, at, room, text, false);
  if (file != NULL) {
    at = append(record, at, sizeof record - 32, "\",\"at\":\"", true);
    at = append(record, at, sizeof record - 32, file, false);
    int n = 0;
    for (unsigned rest = line > 0 ? (unsigned)line : 0; n == 0 || rest > 0; rest /= 10) number[n++] = (char)('0' + rest % 10);
    record[at++] = ':';
    while (n > 0) record[at++] = number[--n];
  }
  memcpy(record + at, "\"}\n", 3);
  at += 3;
  for (size_t done = 0; done < at;) {
    ssize_t n = write(STDERR_FILENO, record + done, at - done);
    if (n <= 0) return; // nobody can be told
    done += (size_t)n;
  }
}

void log_line(TRITONSERVER_LogLevel level, const char *file, int line, const char *text) {
  static const char *const names[] = {"INFO", "WARN", "ERROR", "DEBUG"};
  say(names[(unsigned)level < 4 ? level : 0], text, file, line);
}

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) { return level != TRITONSERVER_LOG_VERBOSE || host_verbose; }

Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char *file, const int line, const char *text) {
  if (!TRITONSERVER_LogIsEnabled(level)) return NULL;
  const char *base = file != NULL ? strrchr(file, '/') : NULL;
  log_line(level, base != NULL ? base + 1 : file, line, text);
  return NULL;
}

// fault_lines is how many faults are logged: a backend that breaks a rule does so for every request.
enum { fault_lines = 20 };

Error *fault(const char *format, ...) {
  static uint32_t faults; // atomic
  char text[1024], whole[1400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  uint32_t n = __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  snprintf(whole, sizeof whole, "a backend broke a rule: %s%s", text, n == fault_lines ? "; more such lines are not logged" : "");
  if (n <= fault_lines) say("ERROR", whole, NULL, 0);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
}

void die(const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  say("ERROR", text, NULL, 0);
  _exit(1);
}

// signals are those by which a backend's fault ends a process.
static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { signal_count = sizeof signals / sizeof signals[0] };
static struct sigaction before[signal_count];

// died tells whose code the thread was in, and lets the signal do its work. A signal in the worker's own code is for who
// handled it before.
static void died(int number, siginfo_t *info, void *context) {
  int i = 0;
  while (i < signal_count - 1 && signals[i] != number) i++;
  if (in_function == NULL && number != SIGABRT) {
    if (before[i].sa_flags & SA_SIGINFO && before[i].sa_sigaction != NULL) {
      before[i].sa_sigaction(number, info, context);
      return;
    }
  } else {
    static const char *const names[] = {"aborted", "accessed memory that is not there (SIGSEGV)",
                                        "accessed memory that is not there (SIGBUS)", "divided by zero (SIGFPE)",
                                        "ran an illegal instruction (SIGILL)"};
    char text[768];
    size_t at = append(text, 0, sizeof text, "a backend ended the process: ", true);
    if (in_function != NULL) {
      at = append(text, at, sizeof text, "backend '", true);
      at = append(text, at, sizeof text, in_backend, true);
      at = append(text, at, sizeof text, "' ", true);
    } else {
      at = append(text, at, sizeof text, "a thread of a backend's ", true);
    }
    at = append(text, at, sizeof text, names[i], true);
    if (in_function != NULL) {
      at = append(text, at, sizeof text, " in ", true);
      at = append(text, at, sizeof text, in_function, true);
      if (in_model[0] != '\0') {
        at = append(text, at, sizeof text, " of model '", true);
        at = append(text, at, sizeof text, in_model, true);
        at = append(text, at, sizeof text, "'", true);
      }
    }
    text[at] = '\0';
    say("ERROR", text, NULL, 0);
  }
  signal(number, SIG_DFL);
  raise(number);
}

void watch_signals(void) {
  for (int i = 0; i < signal_count; i++) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = died;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigfillset(&action.sa_mask);
    sigaction(signals[i], &action, &before[i]);
  }
}
