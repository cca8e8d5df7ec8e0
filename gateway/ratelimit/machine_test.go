package ratelimit

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// TestTranscripts replays events and checks decisions; lines that begin with a blank are
// decisions.
//
//	given NAME=COUNT[@DEVICE] ...          begins anew, with what --rate-limit-resource says
//	load M [priority=N] [device=N] [NAME=COUNT | NAME*=COUNT] ...   one instance; * is global
//	want M, return M, withdraw M, unload M
//	done M [again]
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, replay)
}

type replayer struct {
	m      *machine
	shares map[string]*share
	names  map[*share]string
	out    bytes.Buffer
}

func replay(t *testing.T, text []byte) []byte {
	r := &replayer{}
	return transcript.Replay(t, text, &r.out, func(verb string, args []string) error {
		err := r.event(verb, args)
		if err == nil && verb != "given" {
			r.tell()
		}
		return err
	})
}

func (r *replayer) event(verb string, args []string) error {
	if verb == "given" {
		var given []Resource
		for _, a := range args {
			res, err := resource(a)
			if err != nil {
				return err
			}
			given = append(given, res)
		}
		r.m, r.shares, r.names = newMachine(given), map[string]*share{}, map[*share]string{}
		return nil
	}
	s := r.shares[args[0]]
	if verb == "load" {
		return r.load(args[0], args[1:])
	}
	switch verb {
	case "want":
		r.at(s, r.m.want(s))
	case "done":
		r.at(s, r.m.done(s, len(args) > 1))
	case "return":
		r.m.giveBack(s)
	case "withdraw":
		r.m.withdraw(s)
	case "unload":
		r.m.drop([]*share{s})
	default:
		return fmt.Errorf("unknown event %q", verb)
	}
	return nil
}

func (r *replayer) at(s *share, now bool) {
	if now {
		fmt.Fprintf(&r.out, "  %s begins\n", r.names[s])
	}
}

// tell accepts all grants, and shows who waits and what is used.
func (r *replayer) tell() {
	for len(r.m.grants) > 0 {
		s := r.m.grants[0]
		r.m.accept(s)
		r.at(s, true)
	}
	if len(r.m.line) > 0 {
		fmt.Fprint(&r.out, "  in line:")
		for _, s := range r.m.line {
			fmt.Fprintf(&r.out, " %s", r.names[s])
		}
		fmt.Fprintln(&r.out)
	}
}

func (r *replayer) load(name string, args []string) error {
	in := Instance{}
	device := 0
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		n, err := strconv.Atoi(v)
		if err != nil {
			return err
		}
		switch {
		case k == "priority":
			in.Priority = uint32(n)
		case k == "device":
			device = n
		case strings.HasSuffix(k, "*"):
			in.Needs = append(in.Needs, Need{Name: strings.TrimSuffix(k, "*"), Count: int64(n), Device: Global})
		default:
			in.Needs = append(in.Needs, Need{Name: k, Count: int64(n), Device: device})
		}
	}
	shares, err := r.m.add(nil, []Instance{in})
	if err != nil {
		fmt.Fprintf(&r.out, "  refused: %v\n", err)
		return nil
	}
	r.shares[name], r.names[shares[0]] = shares[0], name
	return nil
}

func resource(s string) (Resource, error) {
	name, rest, _ := strings.Cut(s, "=")
	count, device, ok := strings.Cut(rest, "@")
	n, err := strconv.ParseInt(count, 10, 64)
	r := Resource{Name: name, Count: n, Device: Every}
	if ok && err == nil {
		r.Device, err = strconv.Atoi(device)
	}
	return r, err
}
