package grpcapi

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/admin"
)

// The keys of trailing metadata that say what the response cache did for an answer, with
// the values of the HTTP headers of those names.
const (
	CacheStatusKey = "cache-status"
	AgeKey         = "age"
)

// onOurs is the call on our own transport: st, where its holder knows it; nil: it came on
// another.
func onOurs(ctx context.Context, st *h2.Stream) *h2.Stream {
	if st == nil {
		st, _ = h2.FromContext(ctx)
	}
	return st
}

// cacheTrailer says what the response cache did; models without one say nothing.
func cacheTrailer(ctx context.Context, st *h2.Stream, r *infer.Response) {
	if r.Cache == infer.CacheNone {
		return
	}
	age := ""
	if r.Cache == infer.CacheHit {
		age = strconv.FormatInt(int64(r.Age/time.Second), 10)
	}
	if st = onOurs(ctx, st); st != nil {
		if age == "" {
			st.SetTrailer(CacheStatusKey, r.Cache.Header())
		} else {
			st.SetTrailer(CacheStatusKey, r.Cache.Header(), AgeKey, age)
		}
		return
	}
	md := metadata.MD{CacheStatusKey: {r.Cache.Header()}}
	if age != "" {
		md[AgeKey] = []string{age}
	}
	// It fails without a transport only, and then nobody reads it.
	_ = grpc.SetTrailer(ctx, md)
}

// adminService is the Admin service over a Service.
type adminService struct {
	admin.UnimplementedAdminServer
	s *Service
}

// PurgeCache removes answers from the response cache.
func (a adminService) PurgeCache(ctx context.Context, r *admin.PurgeCacheRequest) (*admin.PurgeCacheResponse, error) {
	return answer(ctx, a.s, "PurgeCache", infer.ActionModelRepository, r.Model, r.Version, func() (*admin.PurgeCacheResponse, error) {
		n, err := a.s.control.PurgeCache(ctx, r.Model, r.Version, r.Tag)
		return &admin.PurgeCacheResponse{Purged: n}, err
	})
}
