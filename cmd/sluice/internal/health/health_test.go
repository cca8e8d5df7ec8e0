package health

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/health/live" {
			w.WriteHeader(http.StatusBadRequest) // as a server that is not ready
		}
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	socket := filepath.Join(t.TempDir(), "http")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	local := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	local.Start()
	defer local.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	frozen, err := net.Listen("unix", filepath.Join(t.TempDir(), "frozen"))
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	for _, row := range []struct {
		args   []string
		port   string // SLUICE_HTTP_PORT
		status int
		want   string // in the error
	}{
		{[]string{"--live"}, port, 0, ""},
		{nil, port, 1, "answered 400 Bad Request to /v2/health/ready"},
		{[]string{"--url", server.URL, "--live"}, "1", 0, ""},
		{[]string{"--url=unix://" + socket, "--live"}, "", 0, ""},
		{[]string{"--url=unix://" + socket}, "", 1, "400"},
		{[]string{"--url=unix://" + socket + "x"}, "", 1, "no answer from unix://"},
		{nil, "1", 1, "no answer from 127.0.0.1:1: "},
		{[]string{"--listens", server.Listener.Addr().String()}, "1", 0, ""},
		{[]string{"--listens", "unix://" + socket}, "1", 0, ""},
		{[]string{"--listens", "unix://" + socket + "x"}, "1", 1, "no such file"},
		{[]string{"--listens", "unix://" + frozen.Addr().String(), "--timeout=50ms"}, "1", 1, "does not react"},
		{[]string{"--url=ftp://h"}, "", 2, "--url: 'ftp://h'"},
		{[]string{"--lives"}, "", 2, "unknown flag"},
		{[]string{"now"}, "", 2, "'now' is not a flag"},
	} {
		var stdout bytes.Buffer
		err := Run(t.Context(), row.args, func(name string) (string, bool) { return row.port, name == "SLUICE_HTTP_PORT" && row.port != "" }, &stdout)
		if Status(err) != row.status || stdout.Len() > 0 || (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q: status %d, %v, output %q; want %d, %q and none", row.args, Status(err), err, &stdout, row.status, row.want)
		}
	}
}

func TestHelp(t *testing.T) {
	var stdout bytes.Buffer
	if err := Run(t.Context(), []string{"--help"}, nil, &stdout); err != nil || stdout.String() != Usage {
		t.Errorf("%v, %q", err, &stdout)
	}
}

func TestServed(t *testing.T) {
	for _, row := range []struct{ address, port, want string }{
		{"", "", "127.0.0.1:8000"}, {"0.0.0.0", "81", "127.0.0.1:81"}, {"::", "", "127.0.0.1:8000"},
		{"10.0.0.1", "", "10.0.0.1:8000"}, {"::1", "82", "[::1]:82"}, {"localhost", "", "localhost:8000"},
	} {
		values := map[string]string{"SLUICE_HTTP_ADDRESS": row.address, "SLUICE_HTTP_PORT": row.port}
		got := served(func(name string) (string, bool) { return values[name], values[name] != "" })
		if got != row.want {
			t.Errorf("%+v: got %s", row, got)
		}
	}
}
