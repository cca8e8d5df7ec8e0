package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client"
)

// workersConfig is the configuration of the workers: one process for the CPU, one for
// each GPU of the host, and those that somebody else started.
func workersConfig(c *Config) (client.Config, error) {
	w := &c.Workers
	out := client.Config{GatewayVersion: c.Version, RequestArena: w.RequestArena, ResponseArena: w.ResponseArena,
		UseStream: w.Stream, WatchInterval: c.Metrics.Interval, OpenTimeout: w.OpenTimeout,
		WaitTime: w.Wait, Processes: w.Processes, MaxProcesses: w.ProcessLimit}
	if w.Local {
		var err error
		if out.Local, err = w.localWorkers(c.Repository.Backends.Directory); err != nil {
			return client.Config{}, err
		}
	}
	for _, address := range w.Remote {
		conf, err := w.remoteTLS(address)
		if err != nil {
			return client.Config{}, err
		}
		out.Remote = append(out.Remote, client.RemoteWorker{Address: address, TLS: conf})
	}
	return out, nil
}

// localWorkers are the processes that the gateway starts.
// backends is --backend-directory.
func (w *WorkersConfig) localWorkers(backends string) ([]client.LocalWorker, error) {
	binary, err := workerBinary(w.Binary)
	if err != nil {
		return nil, err
	}
	env := append(os.Environ(), w.Env...)
	if w.OpenTimeout > 0 {
		env = append(env, "SLUICE_OPEN_REQUEST_TIMEOUT="+w.OpenTimeout.String())
	}
	gpus := w.GPUs
	if gpus == nil {
		gpus = findGPUs(os.DirFS("/dev"))
	}
	local := []client.LocalWorker{{Path: binary, Env: env}}
	programs, err := findPrograms(backends)
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		p.Env = env
		local = append(local, p)
	}
	for _, id := range gpus {
		gpu := client.LocalWorker{Path: binary, Env: env, GPU: true, Device: id}
		if n, ok := w.DeviceMemory[id]; ok {
			gpu.Args = append(gpu.Args, "--device-memory-byte-size="+strconv.FormatInt(n, 10))
		}
		local = append(local, gpu)
	}
	return local, nil
}

// maxPrograms bounds the worker programs of --backend-directory.
const maxPrograms = 64

// findPrograms lists the backends that bring a worker of their own: an executable file
// <directory>/<backend>/sluice-worker-<backend>. A directory that is not there has none.
func findPrograms(directory string) ([]client.LocalWorker, error) {
	entries, err := os.ReadDir(directory)
	if directory == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--backend-directory: %w", err)
	}
	var all []client.LocalWorker
	for _, e := range entries {
		path := filepath.Join(directory, e.Name(), "sluice-worker-"+e.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue // Triton's own layout has libraries there
		}
		if info.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("--backend-directory: %s is not executable", path)
		}
		all = append(all, client.LocalWorker{Name: "backend " + e.Name(), Path: path, Program: true})
	}
	if len(all) > maxPrograms {
		return nil, fmt.Errorf("--backend-directory: %s holds %d worker programs, the most is %d", directory,
			len(all), maxPrograms)
	}
	return all, nil
}

// overNetwork says that a worker's address is none of a Unix socket.
func overNetwork(address string) bool { return !strings.HasPrefix(address, "unix:") }

// workerBinary is the path of sluice-worker: as told, or beside this program.
func workerBinary(path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("finding sluice-worker: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "sluice-worker")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("sluice-worker: %w; --worker-binary names it", err)
	}
	return path, nil
}

// remoteTLS are the files for mutual TLS with a worker on another host; none with
// --worker-insecure.
func (w *WorkersConfig) remoteTLS(address string) (client.TLSFiles, error) {
	if !overNetwork(address) {
		return client.TLSFiles{}, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return client.TLSFiles{}, fmt.Errorf("--worker=%s: %w", address, err)
	}
	if !w.Insecure {
		return client.TLSFiles{Cert: w.TLS.Cert, Key: w.TLS.Key, CA: w.TLS.Root}, nil
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return client.TLSFiles{}, fmt.Errorf("--worker=%s: --worker-insecure is for loopback addresses only", address)
	}
	return client.TLSFiles{}, nil
}

// repositoryWorkers is client.Workers as the repository wants it.
type repositoryWorkers struct{ *client.Workers }

// Backends are those of all workers together.
func (w repositoryWorkers) Backends() map[string]*worker.Backend {
	return together(w.Workers.Backends())
}

// together are backends by name: usable where one worker can use it. Of what workers say of
// one backend that of the first counts that can use it.
func together(said []client.Backend) map[string]*worker.Backend {
	all := map[string]*worker.Backend{}
	for _, b := range said {
		have := all[b.Name]
		gpu := have.GetGpu() || b.Gpu && b.Unavailable == ""
		if have == nil || have.Unavailable != "" && b.Unavailable == "" {
			have = b.Backend
		}
		if have.Gpu != gpu {
			have = proto.CloneOf(have)
			have.Gpu = gpu
		}
		all[b.Name] = have
	}
	return all
}

// Describe reads what a model file and its backend say of a model.
func (w repositoryWorkers) Describe(ctx context.Context, spec *repository.LoadSpec) (*worker.DescribeResponse, error) {
	s := loadSpec(spec)
	return w.Workers.Describe(ctx, &s)
}

// Devices are those of all workers.
func (w repositoryWorkers) Devices() []repository.Device {
	var all []repository.Device
	for _, d := range w.Workers.Devices() {
		all = append(all, repository.Device{GPU: d.GPU, ID: int32(d.ID), Name: d.Name})
	}
	return all
}

// loadSpec is a version as the workers' client wants it, without instances.
func loadSpec(spec *repository.LoadSpec) client.Spec {
	return client.Spec{
		Name: spec.Name, Namespace: spec.Namespace, Version: spec.Version, ModelDir: spec.ModelDir,
		ModelFile: spec.ModelFile, Config: spec.Config, Backend: spec.Backend, BackendFile: spec.BackendFile,
		Options: spec.Options, Inspect: spec.Inspect, Changed: spec.Changed,
	}
}

// Load loads a version.
func (w repositoryWorkers) Load(ctx context.Context, spec repository.LoadSpec) (repository.Loaded, error) {
	s := loadSpec(&spec)
	if like, ok := spec.Like.(*client.Version); ok {
		s.Like = like
	}
	for _, i := range spec.Instances {
		s.Instances = append(s.Instances, client.Instance(i))
	}
	v, err := w.Workers.Load(ctx, s)
	if err != nil {
		return nil, err
	}
	return v, nil
}
