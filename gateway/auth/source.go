package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// Bounds of a fetch.
const (
	fetchTime  = 5 * time.Second
	fetchBytes = 1 << 20
)

// sourceID says where keys come from; equal ones share a source over reloads.
type sourceID struct {
	issuer string // discovered from here, or
	jwks   string // fetched from here
	ca     string // PEM of the roots; "": the system's
}

// source fetches an issuer's keys. What was fetched last stays until something else is.
type source struct {
	id     sourceID
	client *http.Client
	log    *slog.Logger
	keys   atomic.Pointer[[]verifyKey] // nil: not fetched yet
	wake   chan struct{}               // one element: look again
	fresh  func()                      // is told that the keys are others

	mu    sync.Mutex
	state refresher // mu
	uri   string    // mu; of the keys, once it was discovered
	last  string    // mu; what was fetched
}

func newSource(id sourceID, log *slog.Logger, fresh func()) (*source, error) {
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: fetchTime}).DialContext, MaxIdleConns: 2, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: fetchTime, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true}
	if id.ca != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(id.ca)) {
			return nil, errors.New("'ca' has no certificate")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	s := &source{id: id, log: log, wake: make(chan struct{}, 1), fresh: fresh}
	s.client = &http.Client{Transport: bounded{t}, Timeout: fetchTime, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 3 {
			return errors.New("too many redirects")
		}
		return checkNext(id.issuer+id.jwks, r.URL.String())
	}}
	return s, nil
}

// checkURL refuses what would let keys be changed on their way: plain HTTP to another
// host.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("no URL with a host, and without a name and password")
	}
	if u.Scheme == "https" {
		return nil
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return errors.New("keys come over https (over http from this host alone)")
}

// checkNext is checkURL for where a place sends us on to. What is fetched over https stays
// on it: no answer of an issuer's makes us ask a server of our own host.
func checkNext(from, to string) error {
	if strings.HasPrefix(strings.ToLower(from), "https:") && !strings.HasPrefix(strings.ToLower(to), "https:") {
		return errors.New("keys that come over https are not fetched over http")
	}
	return checkURL(to)
}

// bounded limits the bytes of answers.
type bounded struct{ http.RoundTripper }

// RoundTrip is http.RoundTripper's.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, fetchBytes+1), resp.Body}
	}
	return resp, err
}

// unknown is told of a token whose key we have not; see refresher.
func (s *source) unknown(now time.Time) bool {
	s.mu.Lock()
	pending := s.state.unknown(now)
	s.mu.Unlock()
	if pending {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return pending
}

// run fetches until ctx ends.
func (s *source) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	for {
		s.mu.Lock()
		at, _ := s.state.next()
		s.mu.Unlock()
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.wake:
			timer.Stop()
			continue
		case <-timer.C:
		}
		s.fetch(ctx)
	}
}

func (s *source) fetch(ctx context.Context) {
	s.mu.Lock()
	s.state.begin(time.Now())
	failing := s.state.failures > 0
	s.mu.Unlock()
	keys, text, err := s.get(ctx)
	s.mu.Lock()
	changed := err == nil && text != s.last
	if changed {
		s.last = text
		s.keys.Store(&keys)
	}
	s.state.end(err == nil)
	s.mu.Unlock()
	where := s.id.issuer + s.id.jwks
	switch {
	case changed:
		s.log.Info("an issuer's keys were fetched", "from", where, "keys", len(keys))
		s.fresh()
	case err != nil && !failing && ctx.Err() == nil:
		s.log.Error("an issuer's keys can't be fetched; those that there are stay in use", "from", where, "error", err)
	case err == nil && failing:
		s.log.Info("an issuer's keys can be fetched again", "from", where)
	}
}

// get fetches the keys, and the text that they were in.
func (s *source) get(ctx context.Context) ([]verifyKey, string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	uri, err := s.find(ctx)
	if err != nil {
		return nil, "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, "", err
	case resp.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("status %d", resp.StatusCode)
	case len(body) > fetchBytes:
		return nil, "", fmt.Errorf("more than %d bytes", fetchBytes)
	}
	keys, err := parseJWKs(body, false)
	return keys, string(body), err
}

// find gives where the keys are.
// Source: OpenID Connect Discovery 1.0, 4.
func (s *source) find(ctx context.Context) (string, error) {
	if s.id.jwks != "" {
		return s.id.jwks, nil
	}
	s.mu.Lock()
	uri := s.uri
	failing := s.state.failures > 0
	s.mu.Unlock()
	if uri != "" && !failing { // after a failure it is looked for again
		return uri, nil
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, s.client), s.id.issuer)
	if err != nil {
		return "", fmt.Errorf("discovery: %w", firstLine(err))
	}
	var claims struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := provider.Claims(&claims); err != nil {
		return "", fmt.Errorf("discovery: %w", err)
	}
	if err := checkNext(s.id.issuer, claims.JWKS); err != nil {
		return "", fmt.Errorf("discovery: jwks_uri: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uri = claims.JWKS
	return s.uri, nil
}

// firstLine keeps pages of HTML out of the log.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(strings.ToValidUTF8(strings.Map(visible, line[:min(len(line), 256)]), "?"))
}
