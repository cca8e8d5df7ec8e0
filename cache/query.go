package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// TagsParam is the request parameter with tags of its answer: a string, separated by
// commas. It is part of the request's identity like every parameter, so an entry has
// the tags of every request that it answers.
const TagsParam = "sluice_cache_tags"

// Query is one request on its way through the levels. It is pooled: nobody keeps it.
type Query struct {
	Subject *Subject
	Request *infer.Request
	Key     Key
	Tags    []string // the subject's and the request's, sorted

	// Start is when the lookup began, and End when a level had looked, both as infer.Now;
	// 0: nobody has read the clock. So a lookup reads it twice in all.
	Start, End int64

	keys       *Keys
	shared     [32]byte
	haveShared bool
	epoch      uint64 // purges that had begun when it was made
	during     bool   // one of them had not ended
	buf        []byte
	tags       []string
	compress   digest
}

// keepQuery is the most memory that a pooled query keeps.
const keepQuery = 64 << 10

// Keys makes queries for one process.
type Keys struct {
	hasher *Hasher
	pool   sync.Pool
	// begun and ended count purges of whoever keeps what the queries ask for.
	begun, ended atomic.Uint64
}

// NewKeys makes Keys with a secret of their own.
func NewKeys() *Keys { return &Keys{hasher: NewHasher()} }

// Query makes the query of a validated request; Done gives it back.
func (k *Keys) Query(s *Subject, req *infer.Request) *Query {
	q, ok := k.pool.Get().(*Query)
	if !ok {
		q = &Query{keys: k, compress: k.hasher.long.compress}
	}
	q.Subject, q.Request, q.haveShared = s, req, false
	q.Start, q.End = 0, 0
	ended := k.ended.Load() // first: if as many have begun, none was under way
	q.epoch = k.begun.Load()
	q.during = q.epoch != ended
	q.Tags = s.Tags
	if v, ok := req.Params.Get(TagsParam); ok && v.Kind == infer.KindString {
		q.tags = appendTags(append(q.tags[:0], s.Tags...), v.Str)
		q.Tags = q.tags
	}
	var load [8]byte
	binary.LittleEndian.PutUint64(load[:], s.Load)
	q.buf = appendCanonical(q.buf[:0], s, load[:], req, q.compress)
	q.buf = k.hasher.key(&q.Key, q.buf)
	return q
}

// Stale says that a purge has begun since the query was made: what was found or made for
// it must not be kept. A Level asks once more where none of its own purges can pass, so
// that either this is true, or the purge comes by what was kept.
func (q *Query) Stale() bool { return q.keys != nil && q.keys.begun.Load() != q.epoch }

// Done gives the query back.
func (q *Query) Done() {
	q.Subject, q.Request, q.Tags = nil, nil, nil
	if cap(q.buf) > keepQuery {
		q.buf = nil
	}
	q.keys.pool.Put(q)
}

// Shared is the request's identity between processes: SHA-256 of its canonical form
// with the version's content in place of its load. False: the content is not known, or the
// request's inputs are gone before anybody asked, and the request must not be looked for in a
// shared level.
func (q *Query) Shared() ([32]byte, bool) {
	if q.Subject.Content == ([32]byte{}) {
		return [32]byte{}, false
	}
	if !q.haveShared {
		if q.Request.Released {
			return [32]byte{}, false
		}
		q.buf = appendCanonical(q.buf[:0], q.Subject, q.Subject.Content[:], q.Request, whole)
		q.shared, q.haveShared = sha256.Sum256(q.buf), true
	}
	return q.shared, true
}

// maxTags bounds the tags of one request, maxTag the bytes of one.
const (
	maxTags = 16
	maxTag  = 128
)

// ParseTags splits tags at commas; spaces around them, empty and overlong ones and
// those over the sixteenth are left out. They come back sorted, each once.
func ParseTags(s string) []string { return appendTags(nil, s) }

func appendTags(tags []string, s string) []string {
	n := 0
	for t := range strings.SplitSeq(s, ",") {
		if t = strings.TrimSpace(t); t != "" && len(t) <= maxTag && n < maxTags {
			tags = append(tags, t)
			n++
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}
