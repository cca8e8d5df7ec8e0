// Package timing tells a caller where its own request's time went: as the Server-Timing
// field of an answer, and as parameters of a response. Both come from the request's one
// record of timestamps, like statistics, metrics and the access log.
//
// The pipeline and the front ends call it for the requests that ask. It has no state.
package timing

import (
	"slices"
	"strconv"

	"github.com/sluice-serve/sluice/infer"
)

// Header is the name of the HTTP field, Key that of the trailing metadata.
const (
	Header = "Server-Timing"
	Key    = "server-timing"
)

// Spent is where a request's time went, in nanoseconds; -1 where it did not get there.
type Spent struct {
	Queue   int64 // waiting for an instance; a lookup in the cache that missed is in it
	Compute int64 // of its batch, Input, Infer and Output together
	Input   int64
	Infer   int64
	Output  int64
	Cache   int64 // the lookup, and keeping the answer
	Total   int64 // since the request had arrived, or the call was opened
}

// Of reads the record of a call that ends now; req may be nil.
func Of(env *infer.Envelope, req *infer.Request, now int64) Spent {
	s := Spent{-1, -1, -1, -1, -1, -1, -1}
	start := int64(0)
	if env != nil {
		start = env.Opened
	}
	if req != nil {
		t := &req.Times
		if t.RequestStart != 0 && (start == 0 || t.RequestStart < start) {
			start = t.RequestStart
		}
		if !t.CacheHit {
			s.Queue, s.Compute = between(t.QueueStart, t.ComputeStart), between(t.ComputeStart, t.ComputeEnd)
			s.Input, s.Infer = between(t.ComputeStart, t.ComputeInputEnd), between(t.ComputeInputEnd, t.ComputeOutputStart)
			s.Output = between(t.ComputeOutputStart, t.ComputeEnd)
		}
		if t.CacheLookup > 0 {
			s.Cache = t.CacheLookup
		}
	}
	s.Total = between(start, now)
	return s
}

func between(from, to int64) int64 {
	if from == 0 || to < from {
		return -1
	}
	return to - from
}

// Append writes the value of Server-Timing: milliseconds, by phase.
// Source: W3C Server Timing, section 3.
func Append(b []byte, env *infer.Envelope, req *infer.Request) []byte {
	s := Of(env, req, infer.Now())
	b = metric(b, "queue", s.Queue)
	b = metric(b, "compute", s.Compute)
	b = metric(b, "input", s.Input)
	b = metric(b, "infer", s.Infer)
	b = metric(b, "output", s.Output)
	if req != nil && req.Times.Cache != infer.CacheNone {
		b = append(separated(b), "cache;desc="...)
		b = append(b, req.Times.Cache.String()...)
		if s.Cache >= 0 {
			b = millis(append(b, ";dur="...), s.Cache)
		}
	}
	return metric(b, "total", s.Total)
}

func metric(b []byte, name string, ns int64) []byte {
	if ns < 0 {
		return b
	}
	b = append(separated(b), name...)
	return millis(append(b, ";dur="...), ns)
}

func separated(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	return append(b, ", "...)
}

// millis writes nanoseconds as milliseconds with three decimals.
func millis(b []byte, ns int64) []byte {
	us := ns / 1000
	b = strconv.AppendInt(b, us/1000, 10)
	frac := us % 1000
	return append(b, '.', byte('0'+frac/100), byte('0'+frac/10%10), byte('0'+frac%10))
}

// Params are params and, behind them, the request's times so far in microseconds, as
// numbers: sluice_{queue,compute,input,infer,output,cache,total}_us, sluice_batch_size and
// sluice_cache. What a request did not go through is not among them. params itself is
// not changed: a cache may hold it.
func Params(params infer.Params, req *infer.Request) infer.Params {
	s := Of(req.Envelope, req, infer.Now())
	out := slices.Grow(slices.Clip(params), 9)
	number := func(name string, v int64) {
		out = append(out, infer.Param{Name: name, Value: infer.Value{Kind: infer.KindInt64, Int: v}})
	}
	micros := func(name string, ns int64) {
		if ns >= 0 {
			number(name, ns/1000)
		}
	}
	micros("sluice_queue_us", s.Queue)
	micros("sluice_compute_us", s.Compute)
	micros("sluice_input_us", s.Input)
	micros("sluice_infer_us", s.Infer)
	micros("sluice_output_us", s.Output)
	micros("sluice_cache_us", s.Cache)
	micros("sluice_total_us", s.Total)
	if n := req.Times.BatchRows; n > 0 {
		number("sluice_batch_size", int64(n))
	}
	if c := req.Times.Cache; c != infer.CacheNone {
		out = append(out, infer.Param{Name: "sluice_cache", Value: infer.Value{Kind: infer.KindString, Str: c.String()}})
	}
	return out
}
