package picker

import (
	"strconv"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-serve/sluice/xds"
)

// found is what the authorization service tells of a caller.
func found(tenant, principal string) *corev3.Metadata {
	fields := map[string]*structpb.Value{"principal": structpb.NewStringValue(principal), "tenant": structpb.NewStringValue(tenant)}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{xds.AuthzFilter: {Fields: fields}}}
}

// Whatever another caller does with the same correlation ID, a sequence's calls go to the
// gateway that has it: they may neither end nor move what the picker knows of it.
func TestOthersDoNotMoveSequences(t *testing.T) {
	f := newFixture(t)
	id := 0
	as := func(tenant, principal string) func() []string {
		return func() []string { f.authorized = found(tenant, principal); return nil }
	}
	shows := func(headers ...string) func() []string { return func() []string { return headers } }
	for _, who := range []struct {
		name          string
		mine, another func() []string // headers
	}{
		{"tenants", as("red", "a"), as("blue", "b")},
		{"no tenant", as("red", "a"), as("", "a")},
		{"keys", shows("x-api-key", "1"), shows("x-api-key", "2")},
		{"tokens", shows("authorization", "Bearer 1"), shows()},
		{"certificates", shows("x-forwarded-client-cert", "URI=spiffe://a"), shows("x-api-key", "URI=spiffe://a")},
	} {
		for _, does := range []string{"step", "START", "END", "START and END"} {
			t.Run(who.name+" "+does, func(t *testing.T) {
				id++
				f.t, f.authorized = t, nil
				call := func(of func() []string, flags ...string) (address, why string) {
					f.authorized = nil
					headers := append([]string{":path", "/v2/models/stateful/infer", xds.SequenceHeader, strconv.Itoa(id)}, flags...)
					answer, _ := f.call([]byte("{}"), append(headers, of()...)...)
					return f.said(answer)
				}
				at, _ := call(who.mine, StartHeader, "true")
				f.drain(at)
				defer f.drain("")
				var flags []string
				if does != "END" && does != "step" {
					flags = append(flags, StartHeader, "true")
				}
				if does != "START" && does != "step" {
					flags = append(flags, EndHeader, "true")
				}
				call(who.another, flags...)
				call(who.another, flags...)
				if got, why := call(who.mine); got != at || why != string(WhySequence) {
					t.Errorf("the next call goes to %s by %s, want %s, where the sequence is", got, why, at)
				}
				if got, why := call(who.mine, EndHeader, "true"); got != at || why != string(WhySequence) {
					t.Errorf("the last call goes to %s by %s, want %s", got, why, at)
				}
			})
		}
	}
}

// A sequence goes on where it is though its caller shows another token by now, of which the
// picker doesn't know whose it is; so does a new one of its ID, and what a caller without the
// first token ends isn't forgotten.
func TestTokensAreRenewed(t *testing.T) {
	f := newFixture(t)
	call := func(token string, flags ...string) (address, why string) {
		answer, _ := f.call([]byte("{}"), append([]string{":path", "/v2/models/stateful/infer", xds.SequenceHeader, "1",
			"authorization", "Bearer " + token}, flags...)...)
		return f.said(answer)
	}
	at, _ := call("first", StartHeader, "true")
	f.drain(at)
	for _, flags := range [][]string{nil, {EndHeader, "true"}, nil} {
		if got, why := call("second", flags...); got != at || why != string(WhySequence) {
			t.Errorf("%v: the call goes to %s by %s, want %s", flags, got, why, at)
		}
	}
	f.drain("")
	if got, why := call("third", StartHeader, "true"); got != at || why != string(WhyStart) {
		t.Errorf("a new one goes to %s by %s, want %s", got, why, at)
	}
}

// drain lets the gateway at an address take nothing new.
func (f *fixture) drain(address string) {
	top := *f.topology
	top.Gateways = append([]xds.Gateway{}, top.Gateways...)
	for i := range top.Gateways {
		top.Gateways[i].Draining = top.Gateways[i].HTTP == address
	}
	f.server.Set(&top, nil)
}
