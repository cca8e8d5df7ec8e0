package models

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Model is one row of the repository index.
// Source: message RepositoryIndexResponse.ModelIndex, proto/inference/grpc_service.proto.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // "": the model has none
	State   string `json:"state,omitempty"`   // UNKNOWN, LOADING, READY, UNLOADING, UNAVAILABLE; "": never loaded
	Reason  string `json:"reason,omitempty"`
}

// client speaks to one server.
type client struct {
	base   string
	http   *http.Client
	header http.Header
}

// maxAnswer bounds the bytes of an answer.
const maxAnswer = 64 << 20

// unreachable is the error of a server that did not answer.
type unreachable struct{ error }

// newClient takes host:port, http://…, https://… or unix:///path.
func newClient(address string, headers []string) (*client, error) {
	c := &client{header: http.Header{}}
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	c.http = &http.Client{Transport: transport}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		address = "http://localhost"
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usageError{fmt.Errorf("--url: '%s' is not host:port, http://…, https://… or unix:///path", address)}
	}
	c.base = strings.TrimSuffix(u.String(), "/")
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, usageError{fmt.Errorf("--header: '%s' is not <name>:<value>", h)}
		}
		value = strings.TrimSpace(value)
		if file, ok := strings.CutPrefix(value, "@"); ok { // a secret is not for the process list
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, usageError{fmt.Errorf("--header: %w", err)}
			}
			value = strings.TrimSpace(string(text))
		}
		c.header.Add(strings.TrimSpace(name), value)
	}
	return c, nil
}

// body is what a request carries; a length of 0 is none.
type body struct {
	io.Reader
	length int64
}

func jsonBody(v any) (body, error) {
	text, err := json.Marshal(v)
	return body{bytes.NewReader(text), int64(len(text))}, err
}

// post sends a request and decodes its answer into out, unless that is nil.
func (c *client) post(ctx context.Context, path string, b body, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, b.Reader)
	if err != nil {
		return err
	}
	request.ContentLength = b.length
	for name, values := range c.header {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var outer *url.Error // names the URL, which the caller knows
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return unreachable{fmt.Errorf("no answer from %s: %w", c.base, err)}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return unreachable{fmt.Errorf("the answer of %s broke off: %w", c.base, err)}
	}
	if answer.StatusCode != http.StatusOK {
		var failed struct{ Error string }
		if json.Unmarshal(text, &failed) == nil && failed.Error != "" {
			return fmt.Errorf("%s (HTTP %d)", clean(failed.Error), answer.StatusCode)
		}
		return fmt.Errorf("%s answered %s to %s", c.base, answer.Status, path)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("the answer of %s to %s is not what was expected: %w", c.base, path, err)
	}
	return nil
}

// index asks for all models, or only those that are ready.
func (c *client) index(ctx context.Context, ready bool) ([]Model, error) {
	b, err := jsonBody(map[string]bool{"ready": ready})
	if err != nil {
		return nil, err
	}
	var all []Model
	return all, c.post(ctx, "/v2/repository/index", b, &all)
}

func modelPath(name, action string) string {
	return "/v2/repository/models/" + url.PathEscape(name) + "/" + action
}

// clean makes text of a server safe for a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' || r == '\u2066':
			return -1
		}
		return r
	}, s)
}
