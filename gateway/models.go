package gateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/proto/worker"
)

// models is the repository's part of the configuration.
func (r *RepositoryConfig) models() repository.Config {
	return repository.Config{Paths: r.Paths, NoAutoComplete: r.NoAutoComplete, StrictReadiness: r.StrictReadiness,
		LoadThreads: r.LoadThreads, LoadRetries: r.LoadRetries, BackendOptions: r.BackendOptions,
		Mode: r.Mode, PollInterval: r.PollInterval, Startup: r.Startup, ConfigName: r.ConfigName, Namespacing: r.Namespacing,
		LoadQueue: r.LoadQueue, LoadTime: r.LoadTime, LoadFiles: r.LoadFiles, WarmupRequests: r.WarmupRequests, WarmupTime: r.WarmupTime,
		GPULimits: r.GPULimits, TempDir: r.TempDir, Known: r.Known, Backends: r.Backends}
}

// validate says what is wrong with the flags together.
// Source of the text on '*': ModelRepositoryManager::Create of the original.
func (r *RepositoryConfig) validate() error {
	switch {
	case len(r.Startup) > 0 && r.Mode != repository.Explicit:
		return errors.New("use of '--load-model' requires setting '--model-control-mode=explicit' as well")
	case len(r.Startup) > 1 && slices.Contains(r.Startup, "*"):
		return fmt.Errorf("--load-model: %s", "Wildcard model name '*' must be the ONLY startup model if specified at all.")
	}
	return nil
}

// gpuMemory is what a worker said last of a GPU.
func (g *Gateway) gpuMemory(device int) (used, total int64, known bool) {
	for _, s := range g.workers.States() {
		for _, d := range s.Report.GetDevices() {
			if d.GetDevice().GetKind() == worker.Device_GPU && int(d.GetDevice().GetId()) == device && d.GetMemoryTotalBytes() > 0 {
				return d.GetMemoryUsedBytes(), d.GetMemoryTotalBytes(), true
			}
		}
	}
	return 0, 0, false
}
