package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed" // the model
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The server's bounds, which -memory must have room for: arenas and bodies.
const (
	requestArena  = 128 << 20
	responseArena = 64 << 20
	bodyMemory    = 192 << 20
	maxInput      = 24 << 20
	softLimit     = "512MiB" // Go lets garbage grow to what lives, but for this
)

// accumulator is the model of sum: what test/sequence_models.py's accumulator() writes.
//
//go:embed testdata/accumulator.onnx
var accumulator []byte

// models are the repository: name → config.
func models() map[string]string {
	int32s := "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: -1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: -1 }\n"
	cpu := func(n int) string { return fmt.Sprintf("instance_group { count: %d kind: KIND_CPU }\n", n) }
	identity := "backend: \"identity\"\n"
	one := func(datatype string) string {
		return fmt.Sprintf("%sinput { name: \"INPUT0\" data_type: TYPE_%s dims: -1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_%s dims: -1 }\n%s", identity, datatype, datatype, cpu(2))
	}
	sum := "backend: \"onnxruntime\"\nmax_batch_size: 4\n" + cpu(2) +
		"input [ { name: \"VALUE\" data_type: TYPE_INT32 dims: 1 } ]\noutput [ { name: \"SUM\" data_type: TYPE_INT32 dims: 1 } ]\n" +
		"sequence_batching { oldest { max_candidate_sequences: 16 } max_sequence_idle_microseconds: 60000000\n" +
		"state { input_name: \"STATE_IN\" output_name: \"STATE_OUT\" data_type: TYPE_INT32 dims: 1 } }\n"
	all := map[string]string{
		"floats": one("FP64"),
		"bytes":  one("INT8"),
		"held":   sum,
		"echo":   identity + "max_batch_size: 8\n" + int32s + cpu(2) + "dynamic_batching {}\n",
		"slow":   identity + int32s + cpu(2) + `parameters { key: "execute_delay_ms" value { string_value: "30" } }` + "\n",
		"cached": identity + "max_batch_size: 4\n" + int32s + cpu(1) + "response_cache { enable: true }\n",
		"coming": identity + int32s + cpu(1),
		"text": identity + "input { name: \"INPUT0\" data_type: TYPE_STRING dims: 1 }\noutput { name: \"OUTPUT0\" data_type: TYPE_STRING dims: 1 }\n" +
			cpu(1),
		"sum": sum,
		"repeat": "backend: \"repeat\"\n" +
			"input [ { name: \"IN\" data_type: TYPE_INT32 dims: -1 }, { name: \"DELAY\" data_type: TYPE_UINT32 dims: -1 }, { name: \"WAIT\" data_type: TYPE_UINT32 dims: 1 } ]\n" +
			"output [ { name: \"OUT\" data_type: TYPE_INT32 dims: 1 }, { name: \"IDX\" data_type: TYPE_UINT32 dims: 1 } ]\n" +
			"model_transaction_policy { decoupled: true }\n" + cpu(8),
	}
	for i := range hostageCount {
		all[fmt.Sprintf("hostage%d", i)] = one("INT32")
	}
	return all
}

// server is the process under test.
type server struct {
	o                   *options
	cmd                 *exec.Cmd
	ended               chan error // one value
	http, grpc, metrics string     // host:port
	unix                string     // of HTTP
	tls                 *tls.Config
	log                 string
}

// start starts a server and waits until it is ready.
func start(ctx context.Context, o *options) (*server, error) {
	repository := filepath.Join(o.folder, "models")
	served := models()
	if o.churn {
		maps.Copy(served, churned())
	}
	for name, config := range served {
		if err := os.MkdirAll(filepath.Join(repository, name, "1"), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			return nil, err
		}
	}
	for name, file := range map[string][]byte{"sum": accumulator, "held": accumulator, "tally": accumulator, "low": adderFile(0), "high": adderFile(0)} {
		if _, ok := served[name]; !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(repository, name, "1", "model.onnx"), file, 0o644); err != nil {
			return nil, err
		}
	}
	s := &server{o: o, ended: make(chan error, 1), unix: filepath.Join(o.folder, "http.sock"), log: filepath.Join(o.folder, "log")}
	ports := filepath.Join(o.folder, "ports.json")
	args := []string{"serve", "--model-repository=" + repository, "--model-control-mode=explicit", "--load-model=*",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0",
		"--http-unix-socket=" + s.unix, "--port-file=" + ports, "--http-transport=" + o.http, "--grpc-transport=" + o.grpc,
		"--cache-config=local,size=16777216", "--exit-grace-ms=0", "--gpus=none",
		fmt.Sprintf("--request-arena-byte-size=%d", requestArena), fmt.Sprintf("--response-arena-byte-size=%d", responseArena),
		fmt.Sprintf("--max-body-memory-byte-size=%d", bodyMemory), fmt.Sprintf("--http-max-input-size=%d", maxInput)}
	if o.tls {
		cert, key, pool, err := certificate(o.folder)
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{RootCAs: pool, ServerName: "localhost"}
		args = append(args, "--grpc-use-ssl=true", "--grpc-server-cert="+cert, "--grpc-server-key="+key, "--http-server-cert="+cert, "--http-server-key="+key)
	}
	if err := os.Remove(ports); err != nil && !os.IsNotExist(err) { // of a run before
		return nil, err
	}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), o.server, args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := os.MkdirAll(s.temporary(), 0o700); err != nil {
		return nil, err
	}
	s.cmd.Env = append(os.Environ(), "GOMEMLIMIT="+softLimit, "TMPDIR="+s.temporary())
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	if err := s.ready(ctx, ports); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// temporary is the folder for what load calls bring.
func (s *server) temporary() string { return filepath.Join(s.o.folder, "tmp") }

func (s *server) ready(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for pause(ctx, 20*time.Millisecond) {
		if err := s.down(); err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var ports struct{ HTTP, GRPC, Metrics int }
		if err := json.Unmarshal(data, &ports); err != nil {
			return err
		}
		at := func(p int) string { return fmt.Sprintf("127.0.0.1:%d", p) }
		s.http, s.grpc, s.metrics = at(ports.HTTP), at(ports.GRPC), at(ports.Metrics)
		return nil
	}
	return errors.New("the server did not become ready")
}

// down says that the server has ended, and its last words.
func (s *server) down() error {
	select {
	case err := <-s.ended:
		s.ended <- err
		return fmt.Errorf("the server ended: %v\n%s", err, s.tail(4000))
	default:
		return nil
	}
}

func (s *server) tail(n int) string {
	data, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-n):])
}

// logged is the size of the log.
func (s *server) logged() int64 {
	info, err := os.Stat(s.log)
	if err != nil {
		return 0 // there is always one while the server runs
	}
	return info.Size()
}

// stop ends the server as an operator would, and wants it to end well and soon.
func (s *server) stop() error {
	if s.down() == nil {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	late := time.NewTimer(45 * time.Second)
	defer late.Stop()
	select {
	case err := <-s.ended:
		s.ended <- err
		if err != nil {
			return fmt.Errorf("the server's end: %w\n%s", err, s.tail(4000))
		}
		return nil
	case <-late.C:
		return errors.Join(errors.New("the server did not end within 45 s of SIGTERM"), s.cmd.Process.Kill())
	}
}

// dial opens a connection to an address, with TLS for HTTP/2 or HTTP/1.1 where the server
// speaks it.
func (s *server) dial(ctx context.Context, address string, protocol string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil || s.tls == nil {
		return c, err
	}
	conf := s.tls.Clone()
	conf.NextProtos = []string{protocol}
	t := tls.Client(c, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

// web is an HTTP client with connections of its own.
func (s *server) web() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls.Clone(), MaxIdleConnsPerHost: 4, DisableCompression: true}}
}

func (s *server) url(path string) string {
	if s.tls != nil {
		return "https://" + s.http + path
	}
	return "http://" + s.http + path
}

// certificate makes a self-signed certificate of localhost.
func certificate(folder string) (cert, key string, pool *x509.CertPool, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", nil, err
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		return "", "", nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", nil, err
	}
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err = errors.Join(os.WriteFile(cert, text, 0o600), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return cert, key, pool, err
}

// pause waits, and says whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
