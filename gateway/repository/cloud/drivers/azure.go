package drivers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	azureblobs "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"

	"github.com/sluice-serve/sluice/gateway/repository/cloud"
)

// openAzure authorizes with the account's key, a managed identity, the library's chain
// ("default"), or not at all. AZURE_STORAGE_DOMAIN and AZURE_STORAGE_PROTOCOL name
// another server than https://<account>.blob.core.windows.net; where the domain is one
// of this machine the account is the first part of the path.
// Source: ASFileSystem::ASFileSystem of the original; the two variables are gocloud.dev's.
func openAzure(ctx context.Context, l cloud.Location, c cloud.AzureCredential, env func(string) (string, bool)) (*cloud.Bucket, error) {
	account := c.Account
	if account == "" {
		account = l.Account
	}
	domain, _ := env("AZURE_STORAGE_DOMAIN")
	protocol, _ := env("AZURE_STORAGE_PROTOCOL")
	url, err := azureblob.NewServiceURL(&azureblob.ServiceURLOptions{AccountName: account, StorageDomain: domain, Protocol: protocol,
		IsLocalEmulator: strings.HasPrefix(domain, "127.0.0.1") || strings.HasPrefix(domain, "localhost")})
	if err != nil {
		return nil, err
	}
	client, err := azureClient(string(url)+"/"+l.Bucket, account, c)
	if err != nil {
		return nil, err
	}
	b, err := azureblob.OpenBucket(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	return &cloud.Bucket{Bucket: b, Tag: azureTag, Exact: azureExact}, nil
}

func azureClient(url, account string, c cloud.AzureCredential) (*container.Client, error) {
	core := policy.ClientOptions{Transport: &http.Client{Transport: transport()},
		Retry: policy.RetryOptions{MaxRetries: -1}} // the caller tries again
	options := &container.ClientOptions{ClientOptions: core}
	how := c.AuthType
	if how == "" && c.Key != "" {
		how = "key"
	}
	switch how {
	case "key":
		key, err := azblob.NewSharedKeyCredential(account, c.Key)
		if err != nil {
			return nil, fmt.Errorf("the key of Azure account '%s': %w", account, err)
		}
		return container.NewClientWithSharedKeyCredential(url, key, options)
	case "managed_identity":
		o := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: core}
		if c.ClientID != "" {
			o.ID = azidentity.ClientID(c.ClientID)
		}
		identity, err := azidentity.NewManagedIdentityCredential(o)
		if err != nil {
			return nil, err
		}
		return container.NewClient(url, identity, options)
	case "default":
		chain, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: core})
		if err != nil {
			return nil, err
		}
		return container.NewClient(url, chain, options)
	case "":
		return container.NewClientWithNoCredential(url, options)
	}
	return nil, fmt.Errorf("'%s' is no auth_type of Azure: key, managed_identity or default", how)
}

func azureTag(o *blob.ListObject) string {
	var item container.BlobItem
	if !o.As(&item) || item.Properties == nil || item.Properties.ETag == nil {
		return ""
	}
	return string(*item.Properties.ETag)
}

func azureExact(as func(any) bool, tag string) error {
	var options *azblob.DownloadStreamOptions
	if !as(&options) {
		return errors.New("Azure's library gave no request to make exact")
	}
	match := azcore.ETag(tag)
	options.AccessConditions = &azureblobs.AccessConditions{ModifiedAccessConditions: &azureblobs.ModifiedAccessConditions{IfMatch: &match}}
	return nil
}
