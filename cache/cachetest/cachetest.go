package cachetest

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// patience is how long an entry may take to arrive in a level that fills later.
const patience = 5 * time.Second

// Subject is a loaded version for tests; n tells contents and loads apart.
func Subject(model, version string, n byte) *cache.Subject {
	return &cache.Subject{Model: model, Version: version, Load: uint64(n), Content: [32]byte{n, 1}}
}

// Request is a request with one FP32 input of these bytes.
func Request(data ...byte) *infer.Request {
	return &infer.Request{Model: "m", Inputs: []infer.Tensor{{Name: "INPUT0", Datatype: infer.Uint8, Shape: []int64{1, int64(len(data))}, Data: data}}}
}

// Response is an answer with two outputs and a parameter of each kind.
func Response(data ...byte) *infer.Response {
	return &infer.Response{Model: "m", Version: "1", Final: true,
		Outputs: []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{1, int64(len(data))}, Data: data},
			{Name: "TEXT", Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte{2, 0, 0, 0, 'h', 'i'}}},
		Params: infer.Params{{Name: "b", Value: infer.Value{Kind: infer.KindBool, Bool: true}},
			{Name: "i", Value: infer.Value{Kind: infer.KindInt64, Int: -5}},
			{Name: "u", Value: infer.Value{Kind: infer.KindUint64, Int: -1}},
			{Name: "d", Value: infer.Value{Kind: infer.KindDouble, Double: math.Pi}},
			{Name: "s", Value: infer.Value{Kind: infer.KindString, Str: "x"}}}}
}

// Rig is a level with what is needed to ask it.
type Rig struct {
	Level cache.Level
	Keys  *cache.Keys
}

// Lookup asks for a request.
func (r *Rig) Lookup(ctx context.Context, s *cache.Subject, req *infer.Request) *cache.Entry {
	q := r.Keys.Query(s, req)
	defer q.Done()
	return r.Level.Lookup(ctx, q)
}

// Insert keeps an answer to a request.
func (r *Rig) Insert(s *cache.Subject, req *infer.Request, resp *infer.Response) {
	q := r.Keys.Query(s, req)
	defer q.Done()
	r.Level.Insert(q, cache.NewEntry(q, resp, infer.Now(), s.TTL))
}

// Arrives waits until a request is answered and gives the entry.
func (r *Rig) Arrives(t *testing.T, s *cache.Subject, req *infer.Request) *cache.Entry {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		if e := r.Lookup(t.Context(), s, req); e != nil {
			return e
		}
		if time.Now().After(end) {
			t.Fatal("the entry did not arrive")
		}
		pause(t, time.Millisecond)
	}
}

// Goes waits until a request is not answered any more.
func (r *Rig) Goes(t *testing.T, s *cache.Subject, req *infer.Request) {
	t.Helper()
	for end := time.Now().Add(patience); r.Lookup(t.Context(), s, req) != nil; {
		if time.Now().After(end) {
			t.Fatal("the entry did not go")
		}
		pause(t, 5*time.Millisecond)
	}
}

// pause waits a moment between two polls.
func pause(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// Run runs the suite; open makes an empty level for each test, which closes it.
func Run(t *testing.T, open func(t *testing.T) cache.Level) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, r *Rig)
	}{{"an answer comes back whole", whole}, {"what differs is not found", differs}, {"it ends", ends}, {"purge", purge},
		{"an entry is replaced", replaced}, {"entries are not the caller's memory", apart}, {"many at once", many}, {"figures", figures},
		{"a purge overtakes an insertion", overtaken}, {"purges among many", purged}} {
		t.Run(c.name, func(t *testing.T) {
			level := open(t)
			defer func() {
				if err := level.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			c.test(t, &Rig{level, cache.NewKeys()})
		})
	}
}

func whole(t *testing.T, r *Rig) {
	s, req := Subject("m", "1", 1), Request(1, 2, 3)
	if e := r.Lookup(t.Context(), s, req); e != nil {
		t.Fatalf("an empty level found %+v", e)
	}
	want := Response(4, 5, 6)
	r.Insert(s, req, want)
	req.ID = "seven"
	got := r.Arrives(t, s, req).Response(req, infer.Now())
	if got.ID != "seven" || got.Model != "m" || got.Version != "1" || !got.Final || !slices.Equal(got.Params, want.Params) || len(got.Outputs) != 2 {
		t.Fatalf("got %+v", got)
	}
	for i := range got.Outputs {
		g, w := got.Outputs[i], want.Outputs[i]
		if g.Name != w.Name || g.Datatype != w.Datatype || !slices.Equal(g.Shape, w.Shape) || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("output %d: got %+v, want %+v", i, g, w)
		}
	}
	got.Outputs[0].Shape[0], got.Outputs[0].Name = 9, "mine" // the receiver's
	if again := r.Arrives(t, s, req).Response(req, infer.Now()); again.Outputs[0].Shape[0] != 1 || again.Outputs[0].Name != "OUTPUT0" {
		t.Errorf("a receiver changed the entry: %+v", again.Outputs[0])
	}
}

func differs(t *testing.T, r *Rig) {
	s, req := Subject("m", "1", 1), Request(1, 2, 3)
	r.Insert(s, req, Response(4))
	r.Arrives(t, s, req)
	for name, other := range map[string]struct {
		s   *cache.Subject
		req *infer.Request
	}{
		"bytes": {s, Request(1, 2, 4)}, "model": {Subject("n", "1", 1), req}, "version": {Subject("m", "2", 1), req},
		"generation": {Subject("m", "1", 2), req},
	} {
		if e := r.Lookup(t.Context(), other.s, other.req); e != nil {
			t.Errorf("another %s: found %+v", name, e)
		}
	}
}

func ends(t *testing.T, r *Rig) {
	s, never := Subject("m", "1", 1), Subject("never", "1", 1)
	s.TTL, never.TTL = 100*time.Millisecond, -1
	r.Insert(never, Request(1), Response(1))
	r.Insert(s, Request(1), Response(1))
	r.Arrives(t, never, Request(1))
	r.Goes(t, s, Request(1))
	if r.Lookup(t.Context(), never, Request(1)) == nil {
		t.Error("what has no end has ended")
	}
}

func purge(t *testing.T, r *Rig) {
	type one struct {
		s   *cache.Subject
		req *infer.Request
	}
	tagged := Request(1)
	tagged.Params = infer.Params{{Name: cache.TagsParam, Value: infer.Value{Kind: infer.KindString, Str: "x y, *:?,b"}}}
	weird := Subject("a:b*[c]", "1", 1)
	weird.Tags = []string{"b"}
	all := map[string]one{"m1": {Subject("m", "1", 1), Request(1)}, "m2": {Subject("m", "2", 1), Request(1)},
		"tagged": {Subject("m", "3", 1), tagged}, "weird": {weird, Request(1)}, "mm": {Subject("mm", "1", 1), Request(1)}}
	for _, c := range []struct {
		sel  cache.Selector
		gone []string
	}{
		{cache.Selector{Model: "none"}, nil},
		{cache.Selector{Tag: "y"}, nil},
		{cache.Selector{Model: "m", Version: "2"}, []string{"m2"}},
		{cache.Selector{Model: "m"}, []string{"m1", "m2", "tagged"}},
		{cache.Selector{Model: "*"}, nil},
		{cache.Selector{Model: "a:b*[c]"}, []string{"weird"}},
		{cache.Selector{Tag: "*:?"}, []string{"tagged"}},
		{cache.Selector{Tag: "b"}, []string{"tagged", "weird"}},
		{cache.Selector{Model: "m", Tag: "b"}, []string{"tagged"}},
		{cache.Selector{}, []string{"m1", "m2", "tagged", "weird", "mm"}},
	} {
		for _, o := range all {
			r.Insert(o.s, o.req, Response(1))
		}
		for _, o := range all {
			r.Arrives(t, o.s, o.req)
		}
		n, err := r.Level.Purge(t.Context(), c.sel)
		if err != nil || n != int64(len(c.gone)) {
			t.Errorf("%+v: purged %d, %v, want %d", c.sel, n, err, len(c.gone))
		}
		for name, o := range all {
			if found := r.Lookup(t.Context(), o.s, o.req) != nil; found == slices.Contains(c.gone, name) {
				t.Errorf("%+v: %s found: %v", c.sel, name, found)
			}
		}
	}
}

func replaced(t *testing.T, r *Rig) {
	s, req := Subject("m", "1", 1), Request(1)
	r.Insert(s, req, Response(1))
	r.Arrives(t, s, req)
	r.Insert(s, req, Response(2))
	for end := time.Now().Add(patience); r.Arrives(t, s, req).Outputs[0].Data[0] != 2; pause(t, time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the newer answer did not arrive")
		}
	}
}

func apart(t *testing.T, r *Rig) {
	s, req, resp := Subject("m", "1", 1), Request(1), Response(1, 2, 3)
	r.Insert(s, req, resp)
	clear(resp.Outputs[0].Data)
	resp.Outputs[0].Shape[1], resp.Params[0].Name = 99, "other"
	e := r.Arrives(t, s, req)
	if !bytes.Equal(e.Outputs[0].Data, []byte{1, 2, 3}) || e.Outputs[0].Shape[1] != 3 || e.Params[0].Name != "b" {
		t.Errorf("the entry changed with the response: %+v", e)
	}
}

// many inserts and looks up from many goroutines; whatever is found must be the answer
// to its own request.
func many(t *testing.T, r *Rig) {
	s := Subject("m", "1", 1)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				b := byte(i*7+g) % 50
				if e := r.Lookup(t.Context(), s, Request(b)); e != nil {
					if e.Outputs[0].Data[0] != b {
						t.Errorf("asked for %d, got the answer %d", b, e.Outputs[0].Data[0])
					}
					continue
				}
				r.Insert(s, Request(b), Response(b))
				if g == 0 && i%50 == 49 {
					if _, err := r.Level.Purge(t.Context(), cache.Selector{Model: "m"}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func figures(t *testing.T, r *Rig) {
	s := Subject("m", "1", 1)
	r.Lookup(t.Context(), s, Request(1))
	r.Insert(s, Request(1), Response(1))
	r.Arrives(t, s, Request(1))
	all := r.Level.Figures()
	if len(all) == 0 {
		t.Fatal("no figures")
	}
	for _, f := range all {
		if f.Level == "" || f.Lookups < 1 || f.Hits > f.Lookups || f.Failures != 0 {
			t.Errorf("figures %+v", f)
		}
	}
	if all[len(all)-1].Hits+all[0].Hits < 1 {
		t.Errorf("no hit was counted: %+v", all)
	}
}
