package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRun starts a control plane, asks it for its health and ends it.
func TestRun(t *testing.T) {
	file := write(t, "gateways: [{name: a, http: '127.0.0.1:1'}]")
	ports := filepath.Join(t.TempDir(), "port")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	var out, log bytes.Buffer
	go func() {
		done <- Run(running, []string{"--config", file, "--xds-port=0", "--port-file", ports, "--metrics-port=0"}, &out, &log)
	}()
	var at struct{ XDS, Metrics int }
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for at.XDS == 0 {
		if data, err := os.ReadFile(ports); err == nil {
			if err := json.Unmarshal(data, &at); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-tick.C:
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		}
	}
	conn, err := grpc.NewClient(net.JoinHostPort("127.0.0.1", strconv.Itoa(at.XDS)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for serving := false; !serving; {
		h, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		serving = h.Status == healthpb.HealthCheckResponse_SERVING
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	res, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Metrics)) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sluice_xds_envoys 0", `sluice_config_reloads_total{config="topology",result="taken"} 1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the metrics:\n%s", want, text)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) {
	good, bad := write(t, "gateways: [{name: a, http: 'h:1'}]"), write(t, "gateways: [{name: a, htp: 'h:1'}]")
	for _, c := range []struct {
		args []string
		want string // in what is written, or in the error
	}{
		{nil, "Usage: sluice xds --config FILE"},
		{[]string{"--help"}, "--xds-root-cert"},
		{[]string{"check", good}, "1 gateways, 0 routes"},
		{[]string{"check", bad}, "field htp not found"},
		{[]string{"check", write(t, "")}, "the file says nothing; write 'gateways: []' if that is meant"},
		{[]string{"check", write(t, "# gateways\n{}\n")}, "the file says nothing"},
		{[]string{"check", write(t, "gateways: []")}, "0 gateways, 0 routes"},
		{[]string{"--config", write(t, "gateways:\n"), "--xds-port=0"}, "the file says nothing; write 'gateways: []' if that is meant"},
		{[]string{"check"}, "takes one file"},
		{[]string{"bootstrap", "--node=n1", "--xds=plane:7"}, "id: n1"},
		{[]string{"bootstrap", "--nod=n1"}, "unknown flag: --nod"},
		{[]string{"bootstrap", "n1"}, "'n1' is not a flag"},
		{[]string{"start"}, "'start' is neither a flag nor one of bootstrap, check"},
		{[]string{"--interval=1s"}, "--config names the topology"},
		{[]string{"--config", good, "--xds-envoy=envoy"}, "--xds-envoy needs --xds-root-cert"},
		{[]string{"--config", good, "--xds-address=0.0.0.0"}, "needs --xds-cert, --xds-key and --xds-root-cert"},
	} {
		var out bytes.Buffer
		err := Run(t.Context(), c.args, &out, &out)
		got := out.String()
		if err != nil {
			got += err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%v: no %q in %s", c.args, c.want, got)
		}
	}
}
