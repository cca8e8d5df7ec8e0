package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/test/checked"
)

// maxTexts bounds the different texts that a kind keeps.
const maxTexts = 64

// tally is what all callers have seen.
type tally struct {
	grace time.Duration
	begun time.Time

	mu    sync.Mutex
	kinds map[string]*kind
	kills []time.Time
}

// kind is what the callers of one kind have seen, for instance those over HTTP.
type kind struct {
	t *tally

	mu                   sync.Mutex
	calls, failed, wrong int
	failures             map[string]*failures
	wrongs               map[string]int
	took                 []time.Duration // of the calls that were answered rightly
	longest              time.Duration   // of all calls
}

// failures are those with one text. InFlight of them were in flight when something was
// killed, which result finds out: the word of a kill comes after what it breaks.
type failures struct {
	Count    int    `json:"count"`
	InFlight int    `json:"in_flight"`
	spans    []span // the first maxSpans
}

// span is the time of a call.
type span struct{ begin, end time.Time }

// maxSpans bounds the spans that are kept for one text.
const maxSpans = 10000

// result is what is printed of a kind.
type result struct {
	Calls    int                  `json:"calls"` // also those that failed
	Failed   int                  `json:"failed"`
	Wrong    int                  `json:"wrong"`
	Failures map[string]*failures `json:"failures"` // by text
	Wrongs   map[string]int       `json:"wrongs"`   // by text
	P50      float64              `json:"p50_ms"`
	P99      float64              `json:"p99_ms"`
	Longest  float64              `json:"longest_ms"`
	Seconds  float64              `json:"seconds"`
}

// kind gives the kind of that name.
func (t *tally) kind(name string) *kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[name]
	if k == nil {
		k = &kind{t: t, failures: map[string]*failures{}, wrongs: map[string]int{}}
		t.kinds[name] = k
	}
	return k
}

// killed notes that something was killed a moment ago.
func (t *tally) killed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills = append(t.kills, time.Now())
}

// inFlight says that a call was under way when something was killed, or may have been
// sent to it before its end was known.
func (t *tally) inFlight(s span) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.kills, func(k time.Time) bool {
		return s.begin.Before(k.Add(t.grace)) && s.end.After(k.Add(-t.grace))
	})
}

// add notes one call. err is a *checked.Wrong where the answer was wrong.
func (k *kind) add(begin time.Time, err error) {
	end := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	k.longest = max(k.longest, end.Sub(begin))
	var wrong *checked.Wrong
	switch {
	case err == nil:
		k.took = append(k.took, end.Sub(begin))
	case errors.As(err, &wrong):
		k.wrong++
		if text := wrong.Text; k.wrongs[text] > 0 || len(k.wrongs) < maxTexts {
			k.wrongs[text]++
		}
	default:
		k.failed++
		text := class(err)
		f := k.failures[text]
		if f == nil && len(k.failures) >= maxTexts {
			text = "other"
			f = k.failures[text]
		}
		if f == nil {
			f = &failures{}
			k.failures[text] = f
		}
		f.Count++
		if len(f.spans) < maxSpans {
			f.spans = append(f.spans, span{begin, end})
		}
	}
}

// class is the text of a failure without what differs from call to call.
func class(err error) string {
	var refused *checked.StatusError
	var reasoned *reasonError
	var inURL *url.Error
	var inNet *net.OpError
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("%d %s: %s", refused.Status, refused.Reason, plain(string(refused.Text)))
	case errors.As(err, &reasoned):
		s := status.Convert(reasoned.err)
		return plain(fmt.Sprintf("%s %s: %s", s.Code(), reasoned.reason, s.Message()))
	case errors.As(err, &inNet):
		return "connection: " + plain(inNet.Op+": "+inNet.Err.Error())
	case errors.As(err, &inURL):
		return "connection: " + plain(inURL.Err.Error())
	}
	return plain(err.Error())
}

// number is what differs in a text from call to call.
var number = regexp.MustCompile("[0-9]+")

// plain shortens a text and takes its numbers out.
func plain(text string) string {
	return number.ReplaceAllString(text[:min(len(text), 200)], "#")
}

// result is what the kind has seen.
func (k *kind) result(took time.Duration) result {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.failures {
		f.InFlight = 0
		for _, s := range f.spans {
			if k.t.inFlight(s) {
				f.InFlight++
			}
		}
	}
	r := result{Calls: k.calls, Failed: k.failed, Wrong: k.wrong, Failures: k.failures, Wrongs: k.wrongs,
		Seconds: took.Seconds(), Longest: ms(k.longest)}
	if n := len(k.took); n > 0 {
		slices.Sort(k.took)
		r.P50, r.P99 = ms(k.took[n/2]), ms(k.took[n*99/100])
	}
	return r
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
