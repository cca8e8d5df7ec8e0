package otlp

import (
	"net/url"
	"os"
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/sluice-serve/sluice/tracing"
)

// WorkerService is the service.name of the spans of workers.
const WorkerService = "sluice-worker"

const (
	serviceName     = "service.name"
	serviceInstance = "service.instance.id"
)

// resource describes this process; the later of two values of one key counts.
// Source: the resource conventions of OpenTelemetry, and the original's attributes.
func resource(given []string, version string) *resourcepb.Resource {
	r := &resourcepb.Resource{}
	set(r, "telemetry.sdk.name", "opentelemetry")
	set(r, "telemetry.sdk.language", "go")
	set(r, serviceName, tracing.DefaultService)
	set(r, "service.version", version)
	if host, err := os.Hostname(); err == nil {
		set(r, "host.name", host)
	}
	for _, attribute := range given {
		key, value, _ := strings.Cut(attribute, "=")
		set(r, strings.TrimSpace(key), strings.TrimSpace(value))
	}
	return r
}

// Unescape gives the attributes of OTEL_RESOURCE_ATTRIBUTES as Export.Resource has them;
// false where the text can't be read.
// Source: the OpenTelemetry specification, Resource SDK.
func Unescape(text string) ([]string, bool) {
	var out []string
	for member := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(member) == "" {
			continue
		}
		key, value, ok := strings.Cut(member, "=")
		v, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || strings.TrimSpace(key) == "" {
			return nil, false
		}
		out = append(out, strings.TrimSpace(key)+"="+v)
	}
	return out, true
}

// workerResource is that of a worker of this gateway.
func workerResource(gateway *resourcepb.Resource, name string) *resourcepb.Resource {
	r := &resourcepb.Resource{Attributes: slices.Clone(gateway.Attributes)}
	set(r, serviceName, WorkerService)
	set(r, serviceInstance, name)
	return r
}

func set(r *resourcepb.Resource, key, value string) {
	if value == "" {
		return
	}
	kv := &commonpb.KeyValue{Key: clean(key), Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean(value)}}}
	for i, have := range r.Attributes {
		if have.Key == kv.Key {
			r.Attributes[i] = kv
			return
		}
	}
	r.Attributes = append(r.Attributes, kv)
}
