// Package auth says who calls and what they may do: it is the gateway's one policy
// point, for HTTP, gRPC, metrics, and Envoy's ext_authz alike.
//
// Who calls is proved by an API key, a JWT, a client certificate, or by what a trusted
// proxy forwards (Envoy's x-forwarded-client-cert, or our own signed
// x-sluice-proof). What they may do is the policy file's to say; without one,
// everything is open but what can harm, which is answered to callers of this host. The
// original's restricted APIs stand before both.
//
// All that files say is one state, which is built whole, checked, and swapped in: a call
// is opened by one state, each model that its messages name is decided by the one in force
// then, and a bad file leaves the old one in force. An Auth is safe for concurrent use; its goroutines run in Run. No lock is held
// while something is read or fetched.
//
// No caller's secret is kept: of keys and tokens there are digests, which are compared in
// constant time (the proof key and issuers' HMAC secrets are kept, to sign with), and no error or log line repeats what a caller showed.
package auth
