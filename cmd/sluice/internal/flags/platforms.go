package flags

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway"
)

// platforms are the flags of the front ends that hosting platforms call.
// Source: the original's --help; the addresses, the TLS files and the folder of models are
// ours.
func (s *Serve) platforms() []group {
	m, v := &s.Config.SageMaker, &s.Config.Vertex
	sm := append([]flag{
		{name: "allow-sagemaker", arg: "boolean", def: "false", help: "Serve Amazon SageMaker's calls.", set: boolInto(&m.Allow)},
		{name: "sagemaker-port", arg: "integer", def: "8080", help: "Port to listen on; 0 takes any free one.", set: intInto(&m.Port, 0, 65535)},
		{name: "sagemaker-safe-port-range", arg: "integer-integer", help: "Ports that the other front ends may have.", set: func(text string) (err error) {
			m.Safe, err = portRange(text)
			return err
		}},
		{name: "sagemaker-model-directory", arg: "string", def: m.Root, help: "Folder that models may be loaded from: those of multi-model endpoints.", set: stringInto(&m.Root)},
	}, platform("sagemaker", &m.Listen, &m.TLS)...)
	vx := append([]flag{
		{name: "allow-vertex-ai", arg: "boolean", def: "false", help: "Serve Vertex AI's calls; the default is true where AIP_MODE is PREDICTION, and then " +
			"--allow-http and --allow-grpc are false by default.", set: boolInto(&v.Allow)},
		{name: "vertex-ai-port", arg: "integer", def: "8080", help: "Port to listen on; the default is AIP_HTTP_PORT where that is set. 0 takes any free one.", set: intInto(&v.Port, 0, 65535)},
		{name: "vertex-ai-default-model", arg: "string", help: "Model that predictions run; not needed where there is only one.", set: stringInto(&v.Default)},
	}, platform("vertex-ai", &v.Listen, &v.TLS)...)
	return []group{{"Sagemaker", sm}, {"Vertex", vx}}
}

// platform are the flags that both have and that the original has not.
func platform(name string, l *gateway.Listen, t *gateway.TLSFiles) []flag {
	return []flag{
		{name: name + "-address", arg: "string", def: l.Address, help: "Address to listen on.", set: stringInto(&l.Address)},
		{name: name + "-server-cert", arg: "string", help: "PEM file of the certificate; with --" + name + "-server-key the port speaks HTTPS.", set: stringInto(&t.Cert)},
		{name: name + "-server-key", arg: "string", help: "PEM file of the key.", set: stringInto(&t.Key)},
		{name: name + "-root-cert", arg: "string", help: "PEM file of the roots of client certificates.", set: stringInto(&t.Root)},
		{name: name + "-use-ssl-mutual", arg: "boolean", def: "false", help: "Clients must show a certificate of --" + name + "-root-cert.", set: boolInto(&t.Mutual)},
	}
}

// portRange reads LOW-HIGH.
func portRange(text string) (*gateway.PortRange, error) {
	low, high, ok := strings.Cut(text, "-")
	a, err1 := strconv.Atoi(low)
	b, err2 := strconv.Atoi(high)
	if !ok || err1 != nil || err2 != nil || a < 0 || b < a || b > 65535 {
		return nil, fmt.Errorf("'%s' is not <low port>-<high port>", text)
	}
	return &gateway.PortRange{Low: a, High: b}, nil
}

// platformEnvironment reads what the platforms say in the environment: defaults, which
// flags change.
// Source: Parse of the original's command_line_parser.cc, and the constructors of its two
// front ends.
func (s *Serve) platformEnvironment(env func(string) (string, bool)) error {
	get := func(name string) string { v, _ := env(name); return v }
	c := &s.Config
	if get("AIP_MODE") == "PREDICTION" {
		c.Vertex.Allow, c.HTTP.Allow, c.GRPC.Allow = true, false, false
	}
	c.Vertex.Predict, c.Vertex.Health = get("AIP_PREDICT_ROUTE"), get("AIP_HEALTH_ROUTE")
	if port := get("AIP_HTTP_PORT"); port != "" {
		if err := intInto(&c.Vertex.Port, 0, 65535)(port); err != nil {
			return fmt.Errorf("AIP_HTTP_PORT: %w", err)
		}
	}
	c.SageMaker.Live = get("SAGEMAKER_TRITON_PING_MODE") == "live"
	c.SageMaker.Model = get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")
	if call := get("SAGEMAKER_TRITON_INFERENCE_TYPE"); call != "" {
		c.SageMaker.Call = call
	}
	return nil
}

// finishPlatforms fills what depends on flags: the repository that Vertex AI names counts
// where none is given.
func (s *Serve) finishPlatforms(env func(string) (string, bool)) {
	if uri, _ := env("AIP_STORAGE_URI"); uri != "" && len(s.Config.Repository.Paths) == 0 {
		s.Config.Repository.Paths = []string{uri}
	}
}
