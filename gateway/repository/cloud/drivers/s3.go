package drivers

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/sluice-serve/sluice/gateway/repository/cloud"
)

// openS3 uses path-style addresses, as the original does. Without a region it is
// us-east-1; without any credentials requests are not signed, for public buckets.
// Source: S3FileSystem::S3FileSystem of the original.
func openS3(ctx context.Context, l cloud.Location, c cloud.S3Credential) (*cloud.Bucket, error) {
	options := []func(*config.LoadOptions) error{
		// a client that the library can add the certificates of AWS_CA_BUNDLE to
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(tune)),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }), // the caller tries again
	}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	switch {
	case c.SecretKey != "" && c.KeyID != "":
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.KeyID, c.SecretKey, c.SessionToken)))
	case c.Profile != "":
		options = append(options, config.WithSharedConfigProfile(c.Profile))
	}
	conf, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	if conf.Region == "" {
		conf.Region = "us-east-1"
	}
	if conf.Credentials != nil {
		if _, err := conf.Credentials.Retrieve(ctx); err != nil {
			conf.Credentials = aws.AnonymousCredentials{}
		}
	}
	client := s3.NewFromConfig(conf, func(o *s3.Options) {
		o.UsePathStyle = true
		o.DisableLogOutputChecksumValidationSkipped = true // MD5 or ETag are compared by the caller
		if l.Endpoint != "" {
			o.BaseEndpoint = aws.String(l.Endpoint)
		}
	})
	b, err := s3blob.OpenBucket(ctx, client, l.Bucket, nil)
	if err != nil {
		return nil, err
	}
	return &cloud.Bucket{Bucket: b, Tag: s3Tag, Exact: s3Exact}, nil
}

func s3Tag(o *blob.ListObject) string {
	var object types.Object
	if !o.As(&object) {
		return ""
	}
	return aws.ToString(object.ETag)
}

func s3Exact(as func(any) bool, tag string) error {
	var in *s3.GetObjectInput
	if !as(&in) {
		return errors.New("the S3 library gave no request to make exact")
	}
	in.IfMatch = aws.String(tag)
	return nil
}
