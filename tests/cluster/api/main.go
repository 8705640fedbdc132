// A Kubernetes API server for custom resources alone, over an etcd of its own in the same process, on loopback
// without authentication: `api FOLDER`. It prints its address once it answers.
package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	definitions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	openapi "k8s.io/apiserver/pkg/endpoints/openapi"
	server "k8s.io/apiserver/pkg/server"
)

// kubeconfig of the core API, which is not there: nothing of it is asked for.
const nobody = `{"apiVersion": "v1", "kind": "Config", "current-context": "none",
"clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}],
"contexts": [{"name": "none", "context": {"cluster": "none", "user": ""}}]}`

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	store, err := etcd(filepath.Join(folder, "etcd"))
	if err != nil {
		return err
	}
	defer store.Close()
	config := filepath.Join(folder, "core.kubeconfig")
	if err := os.WriteFile(config, []byte(nobody), 0o600); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	recommended := o.RecommendedOptions
	recommended.Etcd.StorageConfig.Transport.ServerList = []string{"http://" + store.Clients[0].Addr().String()}
	recommended.SecureServing.Listener = listener
	recommended.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	recommended.SecureServing.ServerCert.CertDirectory = folder
	recommended.CoreAPI.CoreAPIKubeconfigPath = config
	recommended.Authentication, recommended.Authorization, recommended.Admission = nil, nil, nil
	recommended.Features.EnablePriorityAndFairness = false
	if err := o.Complete(); err != nil {
		return err
	}
	made, err := o.Config()
	if err != nil {
		return err
	}
	made.GenericConfig.OpenAPIConfig = server.DefaultOpenAPIConfig(
		definitions.GetOpenAPIDefinitions, openapi.NewDefinitionNamer(extensions.Scheme))
	api, err := made.Complete().New(server.NewEmptyDelegate())
	if err != nil {
		return err
	}
	fmt.Printf("https://%s\n", listener.Addr())
	return api.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

func etcd(folder string) (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "error"
	config.EnableGRPCGateway = false
	config.UnsafeNoFsync = true // what it holds ends with the process
	loopback := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls, config.ListenPeerUrls = []url.URL{loopback}, []url.URL{loopback}
	store, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	<-store.Server.ReadyNotify()
	return store, nil
}
