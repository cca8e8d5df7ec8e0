package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/sluice-serve/sluice/gateway/check"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/workers/client"
)

// Check writes to out what would be served from cfg's model repositories, and what is
// wrong with them. It starts the workers for it, so that model files are opened; where
// they don't start it says so and checks the rest. An error says that something would
// not be served.
func Check(ctx context.Context, cfg Config, out io.Writer) (err error) {
	r := &cfg.Repository
	store := newStore(&cfg, slog.New(slog.DiscardHandler))
	paths, missing := bringHere(ctx, store, r.Paths)
	if missing != nil {
		if _, err := fmt.Fprintf(out, "Not all models could be brought here: %v\n\n", missing); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	conf := repository.Config{Paths: paths, NoAutoComplete: r.NoAutoComplete, BackendOptions: r.BackendOptions,
		ConfigName: r.ConfigName, Namespacing: r.Namespacing, WarmupRequests: r.WarmupRequests, Known: r.Known,
		Backends: r.Backends}
	report, err := checkWithWorkers(ctx, &cfg, conf)
	if err != nil {
		if _, err := fmt.Fprintf(out, "The workers can't be asked, so model files are not opened: %v\n\n", err); err != nil {
			return err
		}
		report = checked(&cfg).Check(ctx, conf, nil)
	}
	if _, err := report.WriteTo(out); err != nil {
		return err
	}
	switch {
	case missing != nil:
		return errors.New("not all models could be brought here")
	case report.Wrong() == 0 && len(report.Repositories) == 1:
		return errors.New("1 repository fault")
	case report.Wrong() == 0 && len(report.Repositories) > 1:
		return fmt.Errorf("%d repository faults", len(report.Repositories))
	case !report.OK():
		return fmt.Errorf("%d of %d models would not be served as they are", report.Wrong(), len(report.Models))
	}
	return nil
}

func checkWithWorkers(ctx context.Context, cfg *Config, conf repository.Config) (report *check.Report, err error) {
	err = withWorkers(ctx, cfg, func(w *client.Workers) {
		report = checked(cfg).Check(ctx, conf, repositoryWorkers{w})
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// withWorkers starts the workers, to be asked, and ends them.
func withWorkers(ctx context.Context, cfg *Config, ask func(*client.Workers)) error {
	wc, err := workersConfig(cfg)
	if err != nil {
		return err
	}
	w, err := client.Start(ctx, wc, client.Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ask(w)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), unloadTime)
	defer cancel()
	if err := w.Close(end); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("ending the workers: %w", err)
	}
	return nil
}

// checked is what a check is told of the flags.
func checked(cfg *Config) *check.Server {
	return &check.Server{Cache: len(cfg.Cache) > 0, RateLimit: cfg.RateLimit.On, Resources: cfg.RateLimit.Resources, Agents: checkAgents(cfg)}
}
