package infer

import (
	"net/netip"
	"testing"
)

func TestCaller(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  Envelope
		want string
	}{
		{"principal", Envelope{Principal: &Principal{Name: "alice"}, Remote: netip.MustParseAddrPort("10.0.0.1:1")}, "principal alice"},
		{"showed nothing", Envelope{Principal: &Principal{}, Remote: netip.MustParseAddrPort("10.0.0.1:1")}, "address 10.0.0.1"},
		{"mapped", Envelope{Remote: netip.MustParseAddrPort("[::ffff:10.0.0.1]:1")}, "address 10.0.0.1"},
		{"network", Envelope{Remote: netip.MustParseAddrPort("[2001:db8:1:2:3:4:5:6]:1")}, "address 2001:db8:1:2::"},
		{"user", Envelope{Unix: true, Peer: Peer{Known: true, UID: 7}}, "user 7"},
		{"nobody", Envelope{Unix: true}, "nobody"},
	} {
		if got := tc.env.Caller(); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
		if got := CallerOf(WithCaller(t.Context(), tc.want)); got != tc.want || CallerOf(t.Context()) != "" {
			t.Errorf("%s: the context's caller is %q", tc.name, got)
		}
	}
}
