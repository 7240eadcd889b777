package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

const (
	groupChange = "T. Changes of a subscription"
	perGroup    = 3 // URLs of each group that are tried as a subscription's new one
)

// change tries to move a subscription to URLs that must be refused.
func (p *probe) change(ctx context.Context) error {
	was := "https://" + public.String() + "/"
	a, sub, err := p.subscribe(ctx, js(`"`+was+`"`))
	if err != nil || a.status != http.StatusCreated {
		return errors.Join(err, fmt.Errorf("the server does not accept a public address: %s", a.detail()))
	}
	path := "/v1/webhooks/subscriptions/" + sub.ID
	tried := map[string]int{}
	for _, c := range p.cases {
		if c.allow || tried[c.group] == perGroup || p.skip(&c) != "" {
			continue
		}
		tried[c.group]++
		r := result{ID: c.id + "/change", Group: groupChange, Expected: refused, attack: true}
		a, err := p.api.customer(ctx, "PATCH", path, map[string]any{"url": c.url})
		if err != nil {
			return errors.Join(err, p.api.unsubscribe(ctx, sub.ID))
		}
		r.Got, r.Detail = verdict(a), clean(c.text())+" ("+c.why+"): "+a.detail()
		r.Surprise = r.Got != refused
		p.report.add(r)
	}
	var now subscription
	err = p.api.get(ctx, path, &now)
	if err == nil && now.URL != was {
		p.report.add(result{ID: "change", Group: groupChange, Expected: was, Got: now.URL, Surprise: true, Detail: "the URL was changed", attack: true})
	}
	return errors.Join(err, p.api.unsubscribe(ctx, sub.ID))
}
