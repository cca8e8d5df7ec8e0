// Package health is `sluice health`: it asks a running server for its health once, for
// images that have no shell and no curl. Only cmd uses it; it keeps no state.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-serve/sluice/internal/probe"
)

// Usage is the help of `sluice health`.
const Usage = `Usage: sluice health [flags]

Asks a running server for its health, for probes in images without a shell.

  --url <string>        the server: host:port, http://…, https://… or unix:///path
                        (default SLUICE_HTTP_ADDRESS and SLUICE_HTTP_PORT, or 127.0.0.1:8000)
  --live                whether it lives (/v2/health/live), not whether it is ready (/v2/health/ready)
  --listens <string>    whether a server at host:port or unix:///path takes connections and reacts, in place of both
  --timeout <duration>  how long the answer may take (default 2s)

Exit status: 0 yes, 1 no or no answer, 2 wrong command line.
A server that wants certificates of its clients is asked through its --http-unix-socket.
`

// Exit statuses of `sluice health`, beside 0.
const (
	statusNo    = 1
	statusUsage = 2
)

// usageError is the error of a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Status is the exit status of an error of Run; 0 for nil.
func Status(err error) int {
	var wrong usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		return statusUsage
	}
	return statusNo
}

// Run reads the arguments after `sluice health` and, for where to ask, the environment. It
// returns nil when the server says yes; it writes nothing but the help.
func Run(ctx context.Context, args []string, env func(string) (string, bool), stdout io.Writer) error {
	f := pflag.NewFlagSet("health", pflag.ContinueOnError)
	f.SetOutput(io.Discard) // what is wrong is the error
	f.Usage = func() {}
	address := f.String("url", "", "")
	live := f.Bool("live", false, "")
	listens := f.String("listens", "", "")
	timeout := f.Duration("timeout", 2*time.Second, "")
	if err := f.Parse(args); errors.Is(err, pflag.ErrHelp) {
		_, err := io.WriteString(stdout, Usage)
		return err
	} else if err != nil {
		return usageError{err}
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("'%s' is not a flag", f.Arg(0))}
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if *listens != "" {
		if path, ok := strings.CutPrefix(*listens, "unix://"); ok {
			return probe.Reacts(ctx, "unix", path)
		}
		return probe.Reacts(ctx, "tcp", *listens)
	}
	if *address == "" {
		*address = served(env)
	}
	path := "/v2/health/ready"
	if *live {
		path = "/v2/health/live"
	}
	return ask(ctx, *address, path)
}

// served is where a server listens that has its address from the environment.
func served(env func(string) (string, bool)) string {
	host, port := "127.0.0.1", "8000"
	if v, ok := env("SLUICE_HTTP_ADDRESS"); ok && !net.ParseIP(v).IsUnspecified() {
		host = v
	}
	if v, ok := env("SLUICE_HTTP_PORT"); ok {
		port = v
	}
	return net.JoinHostPort(host, port)
}

// ask returns nil for an answer of status 200.
func ask(ctx context.Context, address, path string) error {
	transport := &http.Transport{DisableKeepAlives: true}
	base := address
	if socket, ok := strings.CutPrefix(address, "unix://"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		base = "http://localhost"
	} else if !strings.Contains(address, "://") {
		base = "http://" + address
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usageError{fmt.Errorf("--url: '%s' is not host:port, http://…, https://… or unix:///path", address)}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("no answer from %s: %w", address, errors.Unwrap(err))
	}
	if err := answer.Body.Close(); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s to %s", address, answer.Status, path)
	}
	return nil
}
