package cache

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// Key is a request's identity within one process: 256 bits of Hasher, and how long the
// request's form is.
type Key [40]byte

// Spread is a number that is spread evenly over keys, which themselves are not in each of
// their bytes: forms that differ little may have sums that do.
func (k *Key) Spread() uint64 {
	x := binary.LittleEndian.Uint64(k[:]) ^ binary.LittleEndian.Uint64(k[8:])
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	return x ^ x>>32
}

// Subject is what all requests to one loaded version have in common. It is read-only.
// gateway/repository makes it; two loads have two Subjects even if nothing differs.
type Subject struct {
	Model   string
	Version string // decimal
	// Load is unique to this load in this process.
	Load uint64
	// Content is the hash of the config and files of the version, the same in every
	// gateway that loads the same; the zero value: not computed, and then the version is
	// kept out of shared levels.
	Content [32]byte
	TTL     time.Duration // 0: the level's default; < 0: no end
	Tags    []string      // sorted; of the model's config
	// Ordered says that answers leave in the order of their requests.
	Ordered bool
}

// Level keeps entries: cache/local and cache/redis fit it, and Tiers of both.
type Level interface {
	// Lookup finds the entry for a request; nil: a miss, which is also the answer to
	// every fault. It may wait for as long as its level allows, at most until ctx ends.
	Lookup(ctx context.Context, q *Query) *Entry
	// Quick says that Lookup never waits: callers that must not block may call it.
	Quick() bool
	// Insert keeps e for requests like q, unless q is Stale. It does not wait and may decide
	// not to keep it. It keeps nothing of q; e is shared and read-only from now on.
	Insert(q *Query, e *Entry)
	// Purge removes the entries that s selects and says how many. An entry that is
	// inserted meanwhile may stay, but not one of a query that was Stale by then.
	Purge(ctx context.Context, s Selector) (int64, error)
	// Figures are for metrics; see Figures.
	Figures() []Figures
	// Close ends what the level runs. It is called once, when nobody looks up any more.
	Close(ctx context.Context) error
}

// Selector says which entries; an empty field selects all. The zero Selector is
// everything.
type Selector struct {
	Model   string
	Version string
	Tag     string
	Load    uint64 // those of one load in this process; only local levels know it
}

// Matches says that an entry of the subject with the request's tags is selected.
func (s *Selector) Matches(e *Entry) bool {
	return (s.Model == "" || s.Model == e.Model) && (s.Version == "" || s.Version == e.Version) &&
		(s.Load == 0 || s.Load == e.Load) && (s.Tag == "" || slices.Contains(e.Tags, s.Tag))
}

// Figures are what a level has counted since it was made.
type Figures struct {
	Level       string // "local" or "redis"
	Entries     int64
	Bytes, Size int64 // in use, and the bound; 0 where the level does not know
	Lookups     uint64
	Hits        uint64
	Evictions   uint64
	Lookup      time.Duration // spent in lookups
	Insertion   time.Duration
	Failures    uint64 // lookups and fills that failed
	Dropped     uint64 // fills that found no room in the queue
	Open        bool   // the breaker is open: nothing is asked
}

// Entry is one successful answer, as the backend gave it. It is immutable and plain
// garbage-collected memory, so whoever has it may use it as long as it likes.
type Entry struct {
	Outputs []infer.Tensor
	Params  infer.Params
	Model   string
	Version string
	Load    uint64   // 0: not made by this process
	Tags    []string // sorted
	Stored  int64    // infer.Now when it was made; negative: before this process was
	Expires int64    // infer.Now when it ends; 0: never

	size int64
}

// overhead is what an Entry costs beside its text and data: struct, slices and its
// place in a map.
const overhead = 384

// tensorOverhead is that of each output, beside name, shape and data.
const tensorOverhead = 88

// Size is an estimate of the bytes that the entry takes with its key and its place in a
// level.
func (e *Entry) Size() int64 { return e.size }

func (e *Entry) measure() {
	n := overhead + len(e.Model) + len(e.Version)
	for i := range e.Outputs {
		o := &e.Outputs[i]
		n += tensorOverhead + len(o.Name) + 8*len(o.Shape) + len(o.Data)
	}
	for i := range e.Params {
		n += 72 + len(e.Params[i].Name) + len(e.Params[i].Value.Str)
	}
	for _, t := range e.Tags {
		n += 16 + len(t)
	}
	e.size = int64(n)
}

// sound says that outputs are tensors: what a front end would refuse to send is an error
// and is not kept.
func sound(outputs []infer.Tensor) bool {
	for i := range outputs {
		o := &outputs[i]
		want, err := infer.ByteSize(o.Datatype, o.Shape)
		got := int64(len(o.Data))
		if err == nil && o.Datatype == infer.Bytes {
			if want, err = infer.Elements(o.Shape); err == nil {
				got, err = infer.CountBytesElements(o.Data)
			}
		}
		if err != nil || got != want || o.Datatype == infer.Invalid || o.Datatype > infer.BF16 {
			return false
		}
	}
	return true
}

// NewEntry copies a response to a request like q; ttl ≤ 0: without end. now is infer.Now.
// Nil: the response is no answer.
func NewEntry(q *Query, resp *infer.Response, now int64, ttl time.Duration) *Entry {
	if !sound(resp.Outputs) {
		return nil
	}
	size, dims := 0, 0
	for i := range resp.Outputs {
		size += len(resp.Outputs[i].Data)
		dims += len(resp.Outputs[i].Shape)
	}
	data, shapes := make([]byte, 0, size), make([]int64, 0, dims)
	outputs := make([]infer.Tensor, len(resp.Outputs))
	for i := range resp.Outputs {
		o := &resp.Outputs[i]
		d, s := len(data), len(shapes)
		data, shapes = append(data, o.Data...), append(shapes, o.Shape...)
		outputs[i] = infer.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: shapes[s:len(shapes):len(shapes)],
			Data: data[d:len(data):len(data)]}
	}
	return newEntry(q, outputs, slices.Clone(resp.Params), now, ttl)
}

// Adopt is NewEntry without the copy: what resp holds is the entry's from now on.
func Adopt(q *Query, resp *infer.Response, stored int64, ttl time.Duration) *Entry {
	if !sound(resp.Outputs) {
		return nil
	}
	return newEntry(q, resp.Outputs, resp.Params, stored, ttl)
}

func newEntry(q *Query, outputs []infer.Tensor, params infer.Params, stored int64, ttl time.Duration) *Entry {
	e := &Entry{Outputs: outputs, Params: params, Model: q.Subject.Model, Version: q.Subject.Version, Load: q.Subject.Load,
		Tags: slices.Clone(q.Tags), Stored: stored}
	if ttl > 0 {
		e.Expires = stored + int64(ttl)
	}
	e.measure()
	return e
}

// Alive says that the entry has not ended at now.
func (e *Entry) Alive(now int64) bool { return e.Expires == 0 || now < e.Expires }

// answer is a response with room for what most have. It goes back to its pool with the
// last reference to its memory.
type answer struct {
	infer.Response
	outputs [2]infer.Tensor
	dims    [8]int64
	memory  infer.Buffer
	held    int64               // bytes in Step.held
	free    func(*infer.Buffer) // made once
}

// Response is the entry as an answer to req. Its data are the entry's; its tensors and
// shapes are the receiver's to change.
func (e *Entry) Response(req *infer.Request, now int64) *infer.Response {
	a := &answer{}
	e.fill(a, req, now)
	return &a.Response
}

// response is Response with memory that is used again.
//
// While it is held it counts in the budget, since the cache may evict the entry and count it no more. An error is the
// budget's.
func (s *Step) response(e *Entry, req *infer.Request, now int64) (*infer.Response, error) {
	held := e.size
	if held < infer.CountFrom {
		held = 0
	}
	if err := s.held.Take(held); err != nil {
		return nil, err
	}
	a, ok := s.answers.Get().(*answer)
	if !ok {
		a = &answer{}
		a.free = func(*infer.Buffer) {
			s.held.Give(a.held)
			a.Response, a.outputs, a.held = infer.Response{}, [len(a.outputs)]infer.Tensor{}, 0
			s.answers.Put(a)
		}
	}
	e.fill(a, req, now)
	a.held = held
	a.memory.Reset(nil, a.free)
	a.Memory = &a.memory
	return &a.Response, nil
}

func (e *Entry) fill(a *answer, req *infer.Request, now int64) {
	a.ID, a.Model, a.Version, a.Params, a.Final = req.ID, e.Model, e.Version, e.Params, true
	a.Outputs = append(a.outputs[:0], e.Outputs...)
	dims := a.dims[:0]
	for i := range a.Outputs {
		at := len(dims)
		dims = append(dims, a.Outputs[i].Shape...)
		a.Outputs[i].Shape = dims[at:len(dims):len(dims)]
	}
	a.Age = time.Duration(max(0, now-e.Stored))
}
