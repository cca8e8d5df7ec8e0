package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDefaultConfigLacksOnlyARepository(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err == nil || err.Error() != "--model-repository must be specified" {
		t.Errorf("got %v", err)
	}
	c.Repository.Paths = []string{"/m"}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestAllFaultsOfAConfigAtOnce(t *testing.T) {
	c := DefaultConfig()
	c.HTTP.Allow, c.GRPC.Allow = false, false
	c.HTTP.Forward, c.GRPC.Forward = "(", "["
	c.HTTP.TLS.Cert = "/nonexistent"
	c.GRPC.TLS = TLSFiles{Cert: "/nonexistent", Key: "/nonexistent"}
	c.HTTP.MaxInputSize = 0
	c.Workers.RequestArena = 5
	c.Workers.Remote = []string{"h:1"}
	c.Log.Format = "xml"
	err := c.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--model-repository", "nothing would be served", "--http-header-forward-pattern", "--grpc-header-forward-pattern",
		"--http-server-key", "no such file", "--http-max-input-size", "--request-arena-byte-size", "--worker-cert", "log_format"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

func TestWorkersOfOthers(t *testing.T) {
	for _, row := range []struct {
		local  bool
		remote []string
		want   string // in the fault; "": none
	}{
		{false, nil, "--local-workers=false needs a --worker"},
		{false, []string{"unix:/run/worker"}, ""},
		{true, []string{"unix:/run/worker", "unix:/run/other"}, ""},
		{false, []string{"unix:/run/worker", "h:1"}, "--worker-cert"},
	} {
		c := DefaultConfig()
		c.Repository.Paths = []string{"/m"}
		c.Workers.Local, c.Workers.Remote = row.local, row.remote
		err := c.Validate()
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: got %v", row, err)
		}
		if row.want != "" {
			continue
		}
		c.Workers.Binary = "/bin/true"
		conf, err := workersConfig(&c)
		if err != nil || (len(conf.Local) > 0) != row.local || len(conf.Remote) != len(row.remote) || conf.Remote[0].Address != row.remote[0] {
			t.Errorf("%+v: %+v, %v", row, conf, err)
		}
	}
}

func TestRemoteWorkersWithoutTLS(t *testing.T) {
	w := WorkersConfig{Insecure: true}
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "unix:/w": true, "localhost:1": true, "10.1.2.3:1": false, "host:1": false, "127.0.0.1": false} {
		if _, err := w.remoteTLS(address); (err == nil) != ok {
			t.Errorf("%s: got %v, want success %v", address, err, ok)
		}
	}
}

func TestPortFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports")
	if err := (ports{HTTP: 1, GRPC: 2}).write(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != "{\"http\":1,\"grpc\":2,\"metrics\":0}\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := (ports{}).write(filepath.Join(t.TempDir(), "a", "b")); err == nil {
		t.Error("a file in no folder was written")
	}
}

func TestWorkerBinary(t *testing.T) {
	if _, err := workerBinary("/nonexistent/sluice-worker"); err == nil || !strings.Contains(err.Error(), "--worker-binary") {
		t.Errorf("got %v", err)
	}
}
