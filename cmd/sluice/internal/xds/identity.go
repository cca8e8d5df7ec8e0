package xds

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/stats"
)

// identityOptions are the flags on who may call, for Envoy's ext_authz.
type identityOptions struct{ auth.Config }

func (o *identityOptions) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.Identity, "identity", "", "YAML file that says how callers are known, for the authorization service (docs/0011-identity.md)")
	fs.StringVar(&o.APIKeys, "api-keys", "", "file of API keys' digests")
	fs.StringVar(&o.Policy, "policy", "", "YAML file of who may do what")
}

// serve runs run with the authorization service, where a flag asks for it.
func (o *identityOptions) serve(ctx context.Context, log *slog.Logger, metrics *stats.Registry,
	run func(register []func(grpc.ServiceRegistrar)) error) error {
	if o.Identity == "" && o.APIKeys == "" && o.Policy == "" {
		return run(nil)
	}
	reload := metrics.Reload("policy")
	a, err := auth.New(o.Config, auth.Deps{Log: log, Reloaded: reload.Done})
	if err != nil {
		return err
	}
	reload.Done(nil) // New has read the files
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(running) }()
	err = run([]func(grpc.ServiceRegistrar){gateway.ExtAuthz(a).Register})
	stop()
	return errors.Join(err, <-ended)
}
