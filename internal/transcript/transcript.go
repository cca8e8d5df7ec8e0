// Package transcript tests pure state machines by transcripts: text files of events with
// the decisions that follow from each, which -update writes anew. Tests of every height
// use it.
package transcript

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Flag is the -update flag of a test package, to be called for a package variable.
func Flag() *bool { return flag.Bool("update", false, "rewrite testdata/*.txt") }

// Run gives each testdata/*.txt of the caller's package to play, which returns the same
// text with the decisions that are made now. With update set they are written in place
// of the old ones.
func Run(t *testing.T, update bool, play func(t *testing.T, text []byte) []byte) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, want)
			if update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
			}
		})
	}
}

// Replay copies the events of a transcript to out and hands each on, which writes its
// decisions to out: lines that begin with a blank. `#` begins a comment.
func Replay(t *testing.T, text []byte, out *bytes.Buffer, event func(verb string, args []string) error) []byte {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		if strings.HasPrefix(line, " ") {
			continue
		}
		fmt.Fprintln(out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		words := strings.Fields(line)
		if err := event(words[0], words[1:]); err != nil {
			t.Fatalf("line %d: %q: %v", n, line, err)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
