package bootstrap

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestDeployed compares deploy/envoy/bootstrap.yaml with what is written by default.
func TestDeployed(t *testing.T) {
	got, err := YAML(Default())
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../deploy/envoy/bootstrap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("deploy/envoy/bootstrap.yaml is not what `sluice xds bootstrap` writes:\n%s", got)
	}
}

func TestYAML(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string // in the text, or in the error
	}{
		{"delta", func(c *Config) { c.Delta = true }, []string{"api_type: DELTA_GRPC"}},
		{"zone", func(c *Config) { c.Zone = "east" }, []string{"zone: east"}},
		{"names and sockets", func(c *Config) { c.ControlPlanes = []string{"plane:1", "unix:/run/xds"} }, []string{"STRICT_DNS", "path: /run/xds", "address: plane"}},
		{"TLS", func(c *Config) { c.TLS = &TLS{CA: "/ca", Cert: "/cert", Key: "/key", Name: "plane"} },
			[]string{"filename: /ca", "filename: /key", "exact: plane", "sni: plane"}},
		{"bad admin", func(c *Config) { c.Admin = "localhost" }, []string{`"localhost" is not ip:port`}},
		{"no control plane", func(c *Config) { c.ControlPlanes = nil }, []string{"no address of a control plane"}},
		{"bad port", func(c *Config) { c.ControlPlanes = []string{"a:99999"} }, []string{"a:99999"}},
	} {
		conf := Default()
		c.change(&conf)
		text, err := YAML(conf)
		got := string(text)
		if err != nil {
			got = err.Error()
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, got)
			}
		}
	}
}
