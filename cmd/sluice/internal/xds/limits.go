package xds

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/admission"
	"github.com/sluice-serve/sluice/gateway/stats"
)

// limitFlags are those of the rate limit service beside the control plane.
type limitFlags struct {
	file  string
	redis map[string]string
}

func (l *limitFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&l.file, "limits-file", "", "limits on callers, the gateways' file: Envoy's rate limit service is answered from it")
	fs.StringToStringVar(&l.redis, "limits-redis", nil, "the Redis through which the gateways share their limits: host=HOST,port=PORT[,…]")
}

// serve runs f with the rate limit service, if there is one.
func (l *limitFlags) serve(ctx context.Context, log *slog.Logger, metrics *stats.Registry,
	f func(register []func(grpc.ServiceRegistrar)) error) (err error) {
	if l.file == "" {
		return f(nil)
	}
	deps := admission.Deps{Log: log, Reloaded: metrics.Reload("limits").Done}
	if len(l.redis) > 0 {
		if deps.Redis, err = admission.ParseRedis(l.redis); err != nil {
			return err
		}
	}
	limits, err := admission.New(ctx, l.file, deps)
	if err != nil {
		return err
	}
	following, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		limits.Run(following)
	}()
	err = f([]func(grpc.ServiceRegistrar){gateway.RateLimits(limits).Register})
	stop()
	<-done
	return errors.Join(err, limits.Stop(context.WithoutCancel(ctx)))
}
