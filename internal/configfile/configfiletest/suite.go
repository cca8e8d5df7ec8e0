// Package configfiletest is the suite of tests that every configuration which is read again has to pass: it does to a
// file what editors, full disks and deployments do, and wants that the configuration in force never is a part of it.
package configfiletest

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Subject is a server whose configuration is read from a file.
type Subject struct {
	File         string // its path
	First, Other string // two good contents, of several lines; First is in force at first
	Nothing      string // the content that says in words that nothing is configured; "": the kind of file has none
	Comment      string // a content that is a comment alone; "": the kind has none
	// State names what is in force: "first", "other" or "nothing", or any other text, which is a fault.
	State func() string
	// Results are the errors (nil: it went well) of later readings, in their order.
	Results func() []error
}

// patience is how long the suite waits for a file to be looked at often enough.
const patience = 5 * time.Second

// Run runs the suite. start makes a Subject whose file has the content First, and whatever it needs to read the file
// again until t ends; it is called in a synctest bubble for each test.
func Run(t *testing.T, start func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		run  func(*subject)
	}{
		{"comes into force", (*subject).change},
		{"truncated", func(s *subject) { s.refused("truncated", "") }},
		{"white space", func(s *subject) { s.refused("white space", "\n  \n") }},
		{"a comment", func(s *subject) {
			if s.Comment != "" {
				s.refused("a comment", s.Comment)
			}
		}},
		{"cut amid a line", func(s *subject) { s.refused("cut", strings.TrimSuffix(s.First, "\n")[:len(s.First)-3]) }},
		{"removed", (*subject).removed},
		{"written slowly", (*subject).slowly},
		{"nothing, in words", (*subject).nothing},
		{"written again", (*subject).same},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &subject{Subject: start(t), t: t}
				s.wait()
				s.wants("at first", "first")
				c.run(s)
			})
		})
	}
}

type subject struct {
	Subject
	t      *testing.T
	seen   int   // of Results
	writes int64 // so far
}

// wait lets time pass.
func (s *subject) wait() {
	pause(patience)
}

// pause lets virtual time pass.
func pause(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// write writes the file in place.
func (s *subject) write(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.File, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.stamp(s.File)
}

// stamp gives a file a time of its own. Virtual time passes faster than the clock of the file system, which gives writes
// that follow one another the same time otherwise.
func (s *subject) stamp(name string) {
	s.t.Helper()
	s.writes++
	at := time.Unix(1e9+s.writes, 0)
	if err := os.Chtimes(name, at, at); err != nil {
		s.t.Fatal(err)
	}
}

func (s *subject) wants(when, state string) {
	s.t.Helper()
	if got := s.State(); got != state {
		s.t.Fatalf("%s: in force is %q, want %q", when, got, state)
	}
}

// told wants one more result since the last call, or none.
func (s *subject) told(when string, more int, failed bool) {
	s.t.Helper()
	all := s.Results()
	if len(all)-s.seen != more || more > 0 && (all[len(all)-1] != nil) != failed {
		s.t.Errorf("%s: told %v; want %d more than %d, failed %v", when, all, more, s.seen, failed)
	}
	s.seen = len(all)
}

// change replaces the file by another one.
func (s *subject) change() {
	s.replace(s.Other)
	s.wait()
	s.wants("another file", "other")
	s.told("another file", 1, false)
}

func (s *subject) replace(text string) {
	s.t.Helper()
	part := s.File + ".part"
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.stamp(part)
	if err := os.Rename(part, s.File); err != nil {
		s.t.Fatal(err)
	}
}

// refused writes what must not come into force, and then the first content again.
func (s *subject) refused(what, text string) {
	s.write(text)
	s.wait()
	s.wants(what, "first")
	s.told(what, 1, true)
	s.wait()
	s.told(what+", later", 0, false)
	s.write(s.First)
	s.wait()
	s.wants("mended after "+what, "first")
	s.told("mended after "+what, 1, false)
	s.write(s.Other)
	s.wait()
	s.wants("another file after "+what, "other")
	s.told("another file after "+what, 1, false)
}

func (s *subject) removed() {
	if err := os.Remove(s.File); err != nil {
		s.t.Fatal(err)
	}
	s.wait()
	s.wants("removed", "first")
	s.told("removed", 1, true)
	s.replace(s.Other)
	s.wait()
	s.wants("there again", "other")
	s.told("there again", 1, false)
}

// slowly writes the other content in place, byte by byte, with pauses.
func (s *subject) slowly() {
	f, err := os.OpenFile(s.File, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	pauses := []time.Duration{time.Millisecond, 300 * time.Millisecond, 850 * time.Millisecond}
	for i := range len(s.Other) {
		if i < len(s.Other)-1 {
			s.wants("while it is written", "first")
		}
		if _, err := f.WriteString(s.Other[i : i+1]); err != nil {
			s.t.Fatal(err)
		}
		s.stamp(s.File)
		pause(pauses[i%len(pauses)])
	}
	s.told("while it was written", 0, false)
	if err := f.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.wait()
	s.wants("written", "other")
	s.told("written", 1, false)
}

func (s *subject) nothing() {
	if s.Nothing == "" {
		return
	}
	s.write(s.Nothing)
	s.wait()
	s.wants("nothing, in words", "nothing")
	s.told("nothing, in words", 1, false)
	s.write(s.First)
	s.wait()
	s.wants("something again", "first")
	s.told("something again", 1, false)
}

// same writes the same content again: there is nothing to tell.
func (s *subject) same() {
	s.write("")
	s.write(s.First)
	s.wait()
	s.wants("the same again", "first")
	s.told("the same again", 0, false)
}
