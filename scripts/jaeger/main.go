// Command jaeger is Jaeger with its memory storage, its OTLP receivers and its query API, and nothing else: what
// jaeger-all-in-one is in the tests, without the storages that make its build take minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	collector "github.com/jaegertracing/jaeger/cmd/collector/app"
	collectorflags "github.com/jaegertracing/jaeger/cmd/collector/app/flags"
	query "github.com/jaegertracing/jaeger/cmd/query/app"
	"github.com/jaegertracing/jaeger/cmd/query/app/querysvc"
	"github.com/jaegertracing/jaeger/pkg/healthcheck"
	"github.com/jaegertracing/jaeger/pkg/jtracer"
	"github.com/jaegertracing/jaeger/pkg/metrics"
	"github.com/jaegertracing/jaeger/pkg/telemetery"
	"github.com/jaegertracing/jaeger/pkg/tenancy"
	"github.com/jaegertracing/jaeger/plugin/metrics/disabled"
	"github.com/jaegertracing/jaeger/plugin/storage/memory"
)

func main() {
	otlpGRPC := flag.String("otlp-grpc", "127.0.0.1:4317", "host:port of OTLP over gRPC")
	otlpHTTP := flag.String("otlp-http", "127.0.0.1:4318", "host:port of OTLP over HTTP")
	api := flag.String("query", "127.0.0.1:16686", "host:port of the query API")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *otlpGRPC, *otlpHTTP, *api); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, otlpGRPC, otlpHTTP, api string) (err error) {
	logger := zap.NewNop()
	tenants := tenancy.NewManager(&tenancy.Options{})
	store := memory.NewStore()

	c := collector.New(&collector.CollectorParams{ServiceName: "jaeger-collector", Logger: logger, MetricsFactory: metrics.NullFactory,
		SpanWriter: store, HealthCheck: healthcheck.New(), TenancyMgr: tenants})
	o := &collectorflags.CollectorOptions{QueueSize: 100000, NumWorkers: 4}
	o.HTTP.HostPort, o.GRPC.HostPort = "127.0.0.1:0", "127.0.0.1:0"
	o.OTLP.Enabled = true
	o.OTLP.GRPC.HostPort, o.OTLP.HTTP.HostPort = otlpGRPC, otlpHTTP
	if err := c.Start(o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	qo := &query.QueryOptions{}
	qo.HTTP.Endpoint, qo.GRPC.NetAddr.Endpoint = api, "127.0.0.1:0"
	q, err := query.NewServer(querysvc.NewQueryService(store, store, querysvc.QueryServiceOptions{}), disabledMetrics(), qo, tenants,
		telemetery.Setting{Logger: logger, TracerProvider: jtracer.NoOp().OTEL, Metrics: metrics.NullFactory,
			ReportStatus: telemetery.HCAdapter(healthcheck.New())})
	if err != nil {
		return err
	}
	if err := q.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	<-ctx.Done()
	return nil
}

func disabledMetrics() querysvc.MetricsQueryService {
	r, err := disabled.NewMetricsReader()
	if err != nil {
		log.Fatal(err)
	}
	return r
}
