package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"jpintel/billing/modelgatetest"
)

type devUpstreamCmd struct {
	Addr            string        `default:"127.0.0.1:8790" help:"Where to listen: an address of the loopback, and a port."`
	Token           string        `help:"The partner's token, mgp_…, in place of the development token."`
	Profile         string        `default:"default" help:"How conflicts of idempotency keys are answered: default, stripe, ietf or strict."`
	ExternalRefMode string        `default:"none" help:"What a second group with one external_ref is: none (another group), conflict or return_existing."`
	SecretOnReplay  string        `default:"never" help:"Whether a replay shows a key's secret again: never or within_retention."`
	IdemScope       string        `default:"account" help:"The name space of idempotency keys: account or method_path."`
	ListLag         time.Duration `help:"How late transactions are listed." default:"0s"`
	AuditLag        time.Duration `help:"How late audit events are listed." default:"0s"`
	WalletBalance   string        `default:"1000000.00" help:"The partner's balance at the start."`
	MinTopUp        string        `default:"1.00" help:"The smallest top-up."`
}

func (c *devUpstreamCmd) options() modelgatetest.Options {
	return modelgatetest.Options{
		Token: c.Token, Profile: modelgatetest.Profile(c.Profile), ExternalRefMode: modelgatetest.RefMode(c.ExternalRefMode),
		SecretOnReplay: modelgatetest.SecretMode(c.SecretOnReplay), IdemScope: modelgatetest.IdemScope(c.IdemScope),
		ListLag: c.ListLag, AuditLag: c.AuditLag, WalletBalance: c.WalletBalance, MinTopUp: c.MinTopUp,
	}
}

// upstreamLine is the one line that the command prints.
type upstreamLine struct {
	BaseURL string `json:"base_url"`
	Token   string `json:"token"`
}

// Run serves the stand-in for the upstream until the context ends.
func (c *devUpstreamCmd) Run(ctx context.Context, a *app) error {
	at, err := netip.ParseAddrPort(c.Addr)
	if err != nil || !at.Addr().IsLoopback() {
		return usageError{fmt.Errorf("--addr: want an address of the loopback with a port, like 127.0.0.1:8790: whoever reaches it can do everything")}
	}
	options := c.options()
	if err := options.Validate(); err != nil {
		return usageError{err}
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	if options.Token == "" {
		options.Token = modelgatetest.DevToken
	}
	if err := a.printUpstream(upstreamLine{"http://" + listener.Addr().String() + "/v1", options.Token}); err != nil {
		return err
	}
	upstream := modelgatetest.New(options)
	context.AfterFunc(ctx, upstream.Close)
	return upstream.Serve(listener)
}

func (a *app) printUpstream(line upstreamLine) error {
	if a.json {
		return printJSON(a.stdout, line)
	}
	_, err := fmt.Fprintf(a.stdout, "The upstream's stand-in is at %s with the token %s\n", line.BaseURL, line.Token)
	return err
}
