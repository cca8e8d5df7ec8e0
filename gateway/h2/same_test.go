package h2

import (
	"context"
	"fmt"
	"io"
	"net"
	"sort"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// same is a service that uses what generated code and its handlers may of grpc-go: its
// description is registered with both servers.
func same() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "test.Same", HandlerType: (*any)(nil), Metadata: "same.proto",
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: sameUnary}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: sameStream}}}
}

// sameUnary does what its message says, word by word.
func sameUnary(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var b []byte
	if err := dec(&b); err != nil {
		return nil, err
	}
	out := []byte("echo ")
	for word := range strings.FieldsSeq(string(b)) {
		var err error
		switch word {
		case "header":
			err = grpc.SetHeader(ctx, metadata.Pairs("x-header", "a", "x-header", "b", "x-bin", "\x00\xff"))
		case "send":
			err = grpc.SendHeader(ctx, metadata.Pairs("x-sent", "now"))
		case "trailer":
			err = grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "t", "x-trailer-bin", "\x01"))
		case "reserved":
			err = grpc.SetTrailer(ctx, metadata.Pairs("grpc-status", "3", "content-type", "x", ":path", "/"))
		case "late":
			err = grpc.SetHeader(ctx, metadata.Pairs("x-late", "l"))
		case "method":
			method, _ := grpc.Method(ctx)
			out = append(out, method...)
		case "metadata":
			md, _ := metadata.FromIncomingContext(ctx)
			out = append(out, show(md)...)
		case "peer":
			p, ok := peer.FromContext(ctx)
			out = fmt.Appendf(out, "%v %v", ok, ok && p.Addr != nil && p.LocalAddr != nil)
		case "deadline":
			_, ok := ctx.Deadline()
			out = fmt.Append(out, ok)
		case "details":
			s, err := status.New(codes.Aborted, "mit Umlaut: ä %").WithDetails(durationpb.New(7))
			if err != nil {
				return nil, err
			}
			return nil, s.Err()
		case "fail":
			return nil, io.ErrUnexpectedEOF // no status
		case "cancelled":
			return nil, context.Canceled
		}
		if err != nil {
			out = fmt.Append(out, " ", err)
		}
	}
	return &out, nil
}

// sameStream answers each message, and ends as the last one says.
func sameStream(_ any, stream grpc.ServerStream) error {
	if err := stream.SetHeader(metadata.Pairs("x-header", "a")); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("x-trailer", "t"))
	for {
		var b []byte
		err := stream.RecvMsg(&b)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch string(b) {
		case "send":
			err = stream.SendHeader(metadata.Pairs("x-sent", "now"))
		case "late":
			if stream.SetHeader(metadata.Pairs("x-late", "l")) == nil {
				return status.Error(codes.Internal, "a header behind the first message")
			}
		case "fail":
			return status.Error(codes.OutOfRange, "as asked")
		case "end":
			return nil
		default:
			out := append([]byte("echo "), b...)
			err = stream.SendMsg(&out)
		}
		if err != nil {
			return err
		}
	}
}

// show is metadata in order, without what each client or server adds.
func show(md metadata.MD) string {
	var all []string
	for k, v := range md {
		if k != "user-agent" && k != ":authority" && k != "content-type" { // grpc-go repeats the subtype, the C core does not
			all = append(all, fmt.Sprintf("%s=%q", k, v))
		}
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

// sameCalls says what a client sees of the service at an address.
func sameCalls(t *testing.T, address string) []string {
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	var seen []string
	say := func(name string, out []byte, header, trailer metadata.MD, err error) {
		s := status.Convert(err)
		seen = append(seen, fmt.Sprintf("%s: %q header %s trailer %s, %v %q %v", name, out, show(header), show(trailer), s.Code(), s.Message(), s.Details()))
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-in", "1", "x-in", "2", "x-in-bin", "\x00\x01")
	for _, words := range []string{"", "header", "header trailer", "send header", "header send", "send late", "send send", "trailer", "reserved", "method", "metadata", "peer",
		"deadline", "details", "header trailer details", "send details", "fail", "cancelled"} {
		for _, option := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
			in, out := []byte(words), []byte(nil)
			var header, trailer metadata.MD
			err := cc.Invoke(ctx, "/test.Same/Unary", &in, &out, append(option, grpc.Header(&header), grpc.Trailer(&trailer))...)
			say(words, out, header, trailer, err)
		}
	}
	for _, messages := range [][]string{nil, {"a"}, {"a", "b", "c"}, {"send", "a", "end"}, {"a", "late"}, {"fail"}, {"a", "fail"}, {"send", "fail"}, {"end"}, {""}} {
		say(fmt.Sprint(messages), nil, nil, nil, nil)
		sameMessages(t, ctx, cc, messages, say)
	}
	return seen
}

func sameMessages(t *testing.T, ctx context.Context, cc *grpc.ClientConn, messages []string, say func(string, []byte, metadata.MD, metadata.MD, error)) {
	st, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Same/Stream")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		b := []byte(m)
		if err := st.SendMsg(&b); err != nil && err != io.EOF { // EOF: the server has ended it
			t.Fatal(err)
		}
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		var b []byte
		err := st.RecvMsg(&b)
		if err != nil {
			header, _ := st.Header() // none where the call ended at once
			if err == io.EOF {
				err = nil
			}
			say("end", nil, header, st.Trailer(), err)
			return
		}
		say("message", b, nil, nil, nil)
	}
}

// TestSameService sees that a service does the same on our server and on grpc-go's.
func TestSameService(t *testing.T) {
	f := start(t, nil)
	f.s.deps.Codec = raw{}
	f.s.RegisterService(same(), struct{}{})
	lib := grpc.NewServer(grpc.ForceServerCodecV2(raw{}))
	lib.RegisterService(same(), struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- lib.Serve(l) }()
	t.Cleanup(func() { lib.Stop(); <-ended })
	ours, theirs := sameCalls(t, f.addr), sameCalls(t, l.Addr().String())
	if len(ours) < 50 || len(ours) != len(theirs) {
		t.Fatalf("%d lines, grpc-go %d", len(ours), len(theirs))
	}
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("we:      %s\ngrpc-go: %s", ours[i], theirs[i])
		}
	}
	if info := f.s.GetServiceInfo()["test.Same"]; fmt.Sprint(info) != fmt.Sprint(lib.GetServiceInfo()["test.Same"]) {
		t.Errorf("the service is %v", info)
	}
}
