package extauthz

import (
	"context"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// FuzzCheck: whatever a question says, who is not let in is denied, who is let in has the name
// that was decided on, and headers by which proxies vouch for others don't count.
func FuzzCheck(f *testing.F) {
	f.Add("POST", "/v2/models/m/infer", "spiffe://mesh/a", "-----BEGIN CERTIFICATE-----%0AAAAA", "10.0.0.1",
		uint32(1), int64(-5), "application/grpc")
	f.Add("", "", "", "", "", uint32(0), int64(0), "")
	f.Add("GET", "/inference.GRPCInferenceService/ModelInfer?x", "spiffe://", "%zz", "fe80::1%25eth0", uint32(1<<31),
		int64(1<<62), "text")
	f.Add("POST", strings.Repeat("/", 1<<16), "a:b", "%00", "::", uint32(70000), int64(1), "application/grpc\x00")
	f.Fuzz(func(t *testing.T, method, path, principal, certificate, address string, port uint32, size int64,
		content string) {
		s := New(Deps{
			Decide: func(_ context.Context, env *infer.Envelope) error {
				for _, name := range []string{xds.ProofHeader, xds.PrincipalHeader, "X-Forwarded-Client-Cert"} {
					if env.Header(name) != "" {
						t.Errorf("header %s is believed", name)
					}
				}
				if env.Header("x-api-key") != "right" {
					return infer.Refusef(infer.Unauthenticated, infer.ReasonUnauthenticated, "no")
				}
				env.Principal = &infer.Principal{Name: "somebody"}
				return nil
			},
			HTTP:   func(_, path string, _ *infer.Envelope) bool { return path != "" },
			GRPC:   func(path string, _ *infer.Envelope) bool { return strings.HasPrefix(path, "/inference.") },
			Prove:  func(who *infer.Principal) (string, error) { return "proof of " + who.Name, nil },
			Status: func(infer.Code) int { return 401 },
		})
		for _, key := range []string{"right", "wrong"} {
			headers := map[string]string{"x-api-key": key, "content-type": content, xds.ProofHeader: "stolen",
				xds.PrincipalHeader: "root", "x-forwarded-client-cert": "By=x"}
			socket := &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}
			resp, err := s.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
				Source: &authv3.AttributeContext_Peer{Principal: principal, Certificate: certificate,
					Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: socket}}},
				Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{Method: method,
					Path: path, Size: size, Headers: headers}}}})
			if err != nil {
				t.Fatal(err)
			}
			ok := resp.GetOkResponse()
			routed, _, _ := strings.Cut(path, "?")
			switch {
			case routed == "" && (ok == nil || len(ok.GetHeaders()) != 0 &&
				ok.GetHeaders()[0].GetHeader().GetValue() != "proof of "):
				t.Errorf("no route: %v", resp)
			case routed != "" && (ok != nil) != (key == "right"):
				t.Errorf("key %s: %v", key, resp)
			case routed != "" && ok != nil && ok.GetHeaders()[0].GetHeader().GetValue() != "somebody":
				t.Errorf("%v", ok)
			}
		}
	})
}

// TestNoQuestion: a question without anything in it has no route.
func TestNoQuestion(t *testing.T) {
	s := New(Deps{HTTP: func(string, string, *infer.Envelope) bool { return false }, GRPC: func(string,
		*infer.Envelope) bool {
		return false
	}})
	for _, req := range []*authv3.CheckRequest{nil, {}, {Attributes: &authv3.AttributeContext{}}} {
		resp, err := s.Check(t.Context(), req)
		if err != nil || len(resp.GetOkResponse().GetHeadersToRemove()) != 2 {
			t.Errorf("%v: %v, %v", req, resp, err)
		}
	}
}
