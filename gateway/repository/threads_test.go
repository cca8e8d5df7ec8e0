package repository

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/sluice-serve/sluice/internal/transcript"
)

// TestThreadTranscript replays events and checks decisions; lines that begin with a blank are
// decisions. A caller of "-" is the server itself.
//
//	given N              begins anew with N load threads
//	add CALLER LOAD      a load wants a thread
//	leave CALLER LOAD    it does not wait any longer
//	give CALLER          a load of the caller's ends
func TestThreadTranscript(t *testing.T) {
	const name = "testdata/threads.txt"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var s *threads
	got := transcript.Replay(t, text, &out, func(verb string, args []string) (err error) {
		s, err = threadEvent(s, &out, verb, args)
		return err
	})
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(got, text) {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
}

func threadEvent(s *threads, out *bytes.Buffer, verb string, args []string) (*threads, error) {
	if verb == "given" {
		n, err := strconv.Atoi(args[0])
		return newThreads(n), err
	}
	caller, load := args[0], uint64(0)
	if caller == "-" {
		caller = ownLoads
	}
	if len(args) > 1 {
		n, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return s, err
		}
		load = n
	}
	var granted []uint64
	switch verb {
	case "add":
		granted = s.add(caller, load)
	case "leave":
		fmt.Fprintf(out, "  was there: %v\n", s.leave(caller, load))
	case "give":
		granted = s.give(caller)
	default:
		return s, fmt.Errorf("unknown event %q", verb)
	}
	for _, load := range granted {
		fmt.Fprintf(out, "  %d has a thread\n", load)
	}
	return s, nil
}
