package admission

import (
	"log/slog"
	"strings"
	"time"
)

// answer is what Redis says to a question.
type answer struct {
	got, left int64 // units granted or the claim, and what is left or what other gateways claim
	key       int   // of the limit's keys the one in use, from 1 on; 0: foreign values stand under all
}

// aloneLife is how long a gateway limits alone after foreign values stood under all keys of a limit.
const aloneLife = int64(time.Second)

// maxNotes bounds the lines of the log about foreign values: there are as many keys as callers.
const maxNotes = 64

// note is a line of the log that a gateway writes once.
type note struct {
	key string // the limit's own
	all bool   // foreign values stand under all its keys
}

// maxLoggedKey bounds what the log repeats of a key, which contains names of callers.
const maxLoggedKey = 256

// noteKey counts an answer from another key than the limit's own, and logs the first of each limit. It
// is called by run alone.
func (k *link) noteKey(m *meter, q *question, key int) {
	if key == 1 {
		return
	}
	k.foreign.Add(1)
	n := note{key: q.key, all: key == 0}
	if k.notes[n] || len(k.notes) >= maxNotes {
		return
	}
	k.notes[n] = true
	rule, own := slog.String("rule", m.key.rule), slog.String("key", clip(q.key))
	if n.all {
		k.log.Warn("limits: values that no gateway writes stand under all keys of a limit in Redis; each gateway limits alone by it",
			rule, own)
		return
	}
	k.log.Warn("limits: a value that no gateway writes stood under a limit's key in Redis; gateways share the limit under another key",
		rule, own, slog.String("other", clip(otherKey(k.prefix, q.key, key))))
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxLoggedKey)], "") }

// aloneLocked says that the limit has no key in Redis for now, so that the gateway limits alone by it.
func (s *share) aloneLocked(now int64) bool { return now < s.alone }
