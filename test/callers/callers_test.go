package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

// adder answers as a model would that adds a number and says that it is a version.
func adder(version string, add int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n := len(body)
		if h := r.Header.Get(checked.HeaderLength); h != "" {
			fmt.Sscan(h, &n)
		}
		var in struct{ Inputs []struct{ Data []int32 } }
		if err := json.Unmarshal(body[:n], &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		v := in.Inputs[0].Data
		if n < len(body) {
			v = checked.Numbers(body[n:])
		}
		for i := range v {
			v[i] += add
		}
		if n == len(body) {
			text, _ := json.Marshal(v)
			fmt.Fprintf(w, `{"model_version":%q,"outputs":[{"name":"OUTPUT0","data":%s}]}`, version, text)
			return
		}
		text := fmt.Sprintf(`{"model_version":%q,"outputs":[{"name":"OUTPUT0"}]}`, version)
		w.Header().Set(checked.HeaderLength, fmt.Sprint(len(text)))
		_, _ = w.Write(append([]byte(text), checked.Raw(v)...))
	}
}

// over runs callers over HTTP on a handler, with lines on their standard input.
func over(t *testing.T, h http.Handler, lines string, args ...string) result {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	o, err := parse(append([]string{"-address", strings.TrimPrefix(s.URL, "http://"), "-protocols", "http"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	in, stop := io.Pipe()
	go func() {
		fmt.Fprint(stop, lines)
		time.AfterFunc(200*time.Millisecond, func() { stop.Close() })
	}()
	var out bytes.Buffer
	if err := run(t.Context(), o, in, &out); err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSpace(out.String()), "\n")
	var r map[string]result
	if err := json.Unmarshal([]byte(answers[len(answers)-1]), &r); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	for _, k := range r {
		if k.Calls == 0 {
			t.Fatal("no calls")
		}
		return k
	}
	t.Fatalf("no kinds in %q", out.String())
	return result{}
}

func TestAnswersAreChecked(t *testing.T) {
	for _, c := range []struct {
		name, models, lines string
		version             string
		add                 int32
		wrong               bool
	}{
		{"right", "m=2001", "", "2", 2001, false},
		{"another number", "m=2001", "", "2", 2002, true},
		{"the version is not the number's", "m=2001", "", "1", 2001, true},
		{"another version than was asked for", "m/1=0", "", "2", 0, true},
		{"allowed later", "m=1001", "allow m 2001\n", "2", 2001, false},
		{"forbidden", "m=1001:2001", "forbid m 2001\n", "2", 2001, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := over(t, adder(c.version, c.add), c.lines, "-models", c.models, "-callers", "2", "-pace", "1ms")
			if r.Failed != 0 || (r.Wrong > 2) != c.wrong {
				t.Errorf("%d calls, %d failed, %d wrong %v", r.Calls, r.Failed, r.Wrong, r.Wrongs)
			}
		})
	}
}

func TestFailuresAreClassified(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Sluice-Reason", "queue_full")
		http.Error(w, "7 wait", http.StatusServiceUnavailable)
	}
	r := over(t, http.HandlerFunc(refuse), "count\nkilled\n", "-models", "m=0", "-callers", "1")
	f := r.Failures["503 queue_full: # wait\n"]
	if r.Failed != r.Calls || f == nil || f.Count != r.Calls || f.InFlight == 0 || f.InFlight == r.Calls {
		t.Errorf("%d calls, %d failed: %+v", r.Calls, r.Failed, f)
	}
	cut := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	r = over(t, http.HandlerFunc(cut), "", "-models", "m=0", "-callers", "1")
	if f := r.Failures["connection: EOF"]; f == nil || f.Count != r.Calls || f.InFlight != 0 {
		t.Errorf("%d calls: %v", r.Calls, r.Failures)
	}
}

// TestSequencesOfAnotherLife has a server that forgets to begin anew.
func TestSequencesOfAnotherLife(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		sum, calls := int32(0), 0
		r := over(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var in struct {
				Parameters struct {
					Start bool `json:"sequence_start"`
				}
				Inputs []struct{ Data []int32 }
			}
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			if calls++; calls%7 == 0 { // the caller begins again
				http.Error(w, "lost", http.StatusServiceUnavailable)
				return
			}
			if in.Parameters.Start && !keeps {
				sum = 0
			}
			sum += in.Inputs[0].Data[0]
			fmt.Fprintf(w, `{"model_version":"1","outputs":[{"name":"SUM","data":[%d]}]}`, sum)
		}), "", "-sequences", "sum", "-sequence-callers", "1")
		if r.Failed == 0 || (r.Wrong > 0) != keeps {
			t.Errorf("keeps %t: %d calls, %d failed, %d wrong %v", keeps, r.Calls, r.Failed, r.Wrong, r.Wrongs)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, bad := range [][]string{{}, {"-models", "m"}, {"-models", "m=x"}, {"-models", "m=0", "-protocols", "ftp"},
		{"-models", "m=0", "-header", "x"}, {"-sequences", "s"}, {"-models", "m=0", "-patience", "0s"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}
