package admission

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// player plays a transcript: `limits` takes the rest of its line as the file (YAML in
// one line), `at` moves the clock, `open`, `request` and `close` are those of a call with
// a name, `hit` is Envoy's question. `begin` is a sequence of a call, which `end` ends.
type player struct {
	t    *testing.T
	out  *bytes.Buffer
	now  int64
	l    *Limits
	envs map[string]*infer.Envelope

	sequences map[string]*SequenceHold
}

func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte {
		p := &player{t: t, out: &bytes.Buffer{}, now: int64(time.Hour)}
		return transcript.Replay(t, text, p.out, p.event)
	})
}

func (p *player) event(verb string, args []string) error {
	set := map[string]string{}
	for _, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok {
			set[k] = v
		}
	}
	switch verb {
	case "limits":
		rules, err := Parse([]byte(strings.Join(args, " ")))
		if err != nil {
			return err
		}
		if p.l == nil {
			p.envs = map[string]*infer.Envelope{}
			p.l, err = start(p.t.Context(), rules, Deps{Log: slog.New(slog.DiscardHandler), Now: func() int64 { return p.now }})
			return err
		}
		p.l.use(rules)
	case "at":
		d, err := time.ParseDuration(args[0])
		p.now = int64(time.Hour + d)
		return err
	case "sweep":
		p.l.sweep()
		fmt.Fprintf(p.out, "  %d meters\n", p.l.table.size())
	case "open":
		p.open(args[0], set)
	case "request":
		env := p.envs[args[0]]
		req := &infer.Request{Model: set["model"], Envelope: env, Inputs: []infer.Tensor{{Datatype: infer.Uint8,
			Shape: []int64{p.number(set["elements"])}, Data: make([]byte, p.number(set["bytes"]))}}}
		p.say(p.l.Request(p.t.Context(), req))
	case "close":
		p.l.Close(p.envs[args[0]], p.end(set))
		delete(p.envs, args[0])
	case "begin":
		h, err := p.l.BeginSequence(p.t.Context(), &infer.Request{Model: set["model"], Origin: p.envs[args[1]]})
		p.say(err)
		if p.sequences == nil {
			p.sequences = map[string]*SequenceHold{}
		}
		if p.sequences[args[0]] = h; h == nil && err == nil {
			fmt.Fprintln(p.out, "  no limit counts it")
		}
	case "end":
		p.sequences[args[0]].End()
	case "hit":
		n := max(p.number(set["hits"]), 1)
		v := p.l.Hit(p.t.Context(), Query{Principal: &infer.Principal{Name: set["principal"]}, Model: set["model"], Action: infer.ActionInference, Hits: n})
		fmt.Fprintf(p.out, "  over=%v rule=%q limit=%q left=%d retry=%v\n", v.Over, v.Rule, v.Limit, v.Left, v.Retry)
	default:
		return fmt.Errorf("no event %s", verb)
	}
	return nil
}

func (p *player) open(name string, set map[string]string) {
	env := &infer.Envelope{Model: set["model"], Action: infer.ActionInference, BodySize: p.number(set["size"]), Opened: p.now,
		Remote: netip.MustParseAddrPort("192.0.2.1:1000"), Streaming: set["stream"] == "yes"}
	if set["size"] == "unknown" {
		env.BodySize = -1
	}
	if set["action"] == "config" {
		env.Action = infer.ActionModelConfig
	}
	if set["from"] != "" {
		env.Remote = netip.MustParseAddrPort(set["from"] + ":1000")
	}
	if who := set["principal"]; who != "" {
		env.Principal = &infer.Principal{Name: who}
		if set["group"] != "" {
			env.Principal.Groups = []string{set["group"]}
		}
	}
	p.envs[name] = env
	p.say(p.l.Open(p.t.Context(), env))
}

func (p *player) say(err error) {
	if err == nil {
		fmt.Fprintln(p.out, "  taken")
		return
	}
	if infer.CodeOf(err) != infer.ResourceExhausted {
		p.t.Errorf("code %v", infer.CodeOf(err))
	}
	fmt.Fprintf(p.out, "  %s: %s (%v)\n", infer.ReasonOf(err), err, infer.RetryOf(err))
}

func (p *player) end(set map[string]string) *infer.End {
	end := &infer.End{Received: p.number(set["received"])}
	if c := set["compute"]; c != "" {
		d, err := time.ParseDuration(c)
		if err != nil {
			p.t.Fatal(err)
		}
		rows, of := p.number(set["rows"]), p.number(set["of"])
		end.Request = &infer.Request{Rows: int(rows), Times: infer.Times{ComputeStart: 1, ComputeEnd: 1 + int64(d), BatchRows: int(of)}}
	}
	return end
}

func (p *player) number(s string) int64 {
	if s == "" || s == "unknown" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}
