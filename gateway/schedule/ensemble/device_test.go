package ensemble

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A tensor stays on its device where all who read it are there, and nobody else wants it; the
// next step has its place.
func TestTensorsStayOnTheDevice(t *testing.T) {
	for _, c := range []struct {
		name, devices string // of the models a, b, c
		steps         []string
		want          string // the outputs that may stay, in the order of the steps
	}{
		{"a chain", "g g g", []string{"step a IN -> M", "step b M -> N", "step c N -> OUT"}, "M N"},
		{"another device in between", "g h g", []string{"step a IN -> M", "step b M -> N", "step c N -> OUT"}, ""},
		{"the host last", "g g -", []string{"step a IN -> M", "step b M -> N", "step c N -> OUT"}, "M"},
		{"two readers", "g g g", []string{"step a IN -> M", "step b M -> N", "step c M N -> OUT"}, "M N"},
		{"one reader elsewhere", "g g h", []string{"step a IN -> M", "step b M -> N", "step c M N -> OUT"}, ""},
		{"the host alone", "- - -", []string{"step a IN -> M", "step b M -> OUT"}, ""},
		{"the ensemble's own output", "g g g", []string{"step a IN -> OUT", "step b OUT -> N"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, steps(c.steps...), nil)
			b.steps.models = map[string]model{}
			for i, device := range strings.Fields(c.devices) {
				if device == "-" {
					device = ""
				}
				b.steps.models[string(rune('a'+i))] = model{device: device, run: onDevice(t, b.steps)}
			}
			if _, err := b.do(t.Context(), &infer.Request{}); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, req := range b.steps.seen {
				for _, o := range req.Outputs {
					if o.Resident {
						got = append(got, o.Name)
					}
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v may stay, want %q", got, c.want)
			}
		})
	}
}

// Where a tensor is lost with its worker the steps run once more, through the host, unless that
// could be noticed: a sequence goes on, or a part was answered.
func TestTensorLost(t *testing.T) {
	for _, c := range []struct {
		name  string
		req   infer.Request
		lost  int // executions of step b that fail so
		other bool
		calls int // of all steps
		err   bool
	}{
		{"once", infer.Request{}, 1, false, 4, false},
		{"twice", infer.Request{}, 2, false, 4, true},
		{"another failure", infer.Request{}, 1, true, 2, true},
		{"of a sequence", infer.Request{Correlation: infer.Correlation{ID: 4}}, 1, false, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, steps("step a IN -> M", "step b M -> OUT"), nil)
			first := model{device: "g", run: onDevice(t, b.steps)}
			second, lost := first, 0
			second.run = func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
				if lost++; lost > c.lost {
					return first.run(ctx, req, send)
				}
				if c.other {
					return infer.Errorf(infer.Unavailable, "no")
				}
				return infer.Errorf(infer.Unavailable, "%w", infer.ErrTensorLost)
			}
			b.steps.models = map[string]model{"a": first, "b": second}
			got, err := b.do(t.Context(), &c.req)
			if (err != nil) != c.err || len(b.steps.seen) != c.calls || c.err && infer.CodeOf(err) != infer.Unavailable || !c.err && len(got) != 1 {
				t.Errorf("%d calls, answers %q, %v", len(b.steps.seen), got, err)
			}
			if n := len(b.steps.seen); n == 4 && (b.steps.seen[2].Outputs[0].Resident || b.steps.seen[3].Inputs[0].Data == nil) {
				t.Error("the second time something stays on the device")
			}
		})
	}
}

// What a request has in a client's memory stays there where all who want it read it there. Else
// it is read once, before the steps.
func TestInputsInClientsMemory(t *testing.T) {
	chain := []string{"step a IN -> M", "step b M -> OUT"}
	for _, c := range []struct {
		name, reach string // of the models a and b
		steps       []string
		region      uint32
		want        string // what the steps have of it
		err         bool
	}{
		{"the first step", "a", chain, 1, "a in place", false},
		{"another step", "b", chain, 1, "a region1", false},
		{"two readers", "ab", []string{"step a IN -> M", "step b M IN -> OUT"}, 1, "a in place, b in place", false},
		{"one reader elsewhere", "a", []string{"step a IN -> M", "step b M IN -> OUT"}, 1, "a region1, b region1", false},
		{"it can't be read", "", chain, noRegion, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, steps(c.steps...), nil)
			b.steps.models = map[string]model{}
			for _, name := range []string{"a", "b"} {
				b.steps.models[name] = model{device: "g", reaches: strings.Contains(c.reach, name)}
			}
			place := infer.Place{Region: c.region, Offset: 16, Size: 8}
			_, err := b.do(t.Context(), &infer.Request{Inputs: []infer.Tensor{
				{Name: "IN", Datatype: infer.FP32, Shape: []int64{1, 2}, Place: place}}})
			if (err != nil) != c.err {
				t.Fatal(err)
			}
			var got []string
			for _, req := range b.steps.seen {
				for _, in := range req.Inputs {
					switch {
					case in.Name != "in_IN":
					case in.Place == place && in.Data == nil:
						got = append(got, req.Model+" in place")
					case in.Place.IsZero():
						got = append(got, req.Model+" "+strings.TrimRight(string(in.Data), "\x00"))
					}
				}
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// onDevice answers with the place of what may stay, and checks that inputs come with theirs.
func onDevice(t *testing.T, s *fakeSteps) func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	places := func(name string) infer.Place {
		return infer.Place{Region: infer.MaxRegions + 1 + uint32(name[0]), Offset: 8, Size: 8}
	}
	return func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		for _, in := range req.Inputs {
			if resident := !in.Place.IsZero(); resident && (in.Data != nil || in.Place != places(strings.TrimPrefix(in.Name, "in_"))) || !resident && in.Data == nil {
				t.Errorf("model '%s' has input '%s' with %d bytes at %+v", req.Model, in.Name, len(in.Data), in.Place)
			}
		}
		resp := &infer.Response{Final: true, Memory: s.buffer()}
		for _, o := range req.Outputs {
			out := infer.Tensor{Name: o.Name, Datatype: infer.FP32, Shape: []int64{1, 2}, Data: []byte(fmt.Sprintf("%8s", o.Name))}
			if o.Resident {
				out.Data, out.Place = nil, places(o.Name)
			}
			resp.Outputs = append(resp.Outputs, out)
		}
		return send(resp)
	}
}
