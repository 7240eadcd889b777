package stripe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"jpintel/billing/modelgate"
)

// DefaultBaseURL is Stripe's API.
const DefaultBaseURL = "https://api.stripe.com"

const (
	// listTimeout is the most that one page may take, from dialling to its last
	// byte, and listDial the part of it for a connection.
	listTimeout = 30 * time.Second
	listDial    = 5 * time.Second
	// listPage is how many events are asked for at a time: Stripe's most.
	listPage = 100
	// maxListPage is the most bytes of a page, and maxListPages the most pages of
	// a list: 100,000 events.
	maxListPage  = 16 << 20
	maxListPages = 1000
)

// Lister reads the events of the last 30 days from Stripe's API. It makes each
// request once: it follows no redirect, and keeps no connection on which net/http
// would send one again by itself.
type Lister struct {
	base, key, agent string
}

// ListerOptions says whom to ask.
type ListerOptions struct {
	APIKey  string // sk_… or rk_…
	BaseURL string // default DefaultBaseURL; anything else is for tests, http on a loopback address
	Version string // of this program, for the User-Agent
}

// NewLister returns a lister. It makes no request.
func NewLister(opt ListerOptions) (*Lister, error) {
	base, err := CheckBaseURL(cmp.Or(opt.BaseURL, DefaultBaseURL))
	if err != nil {
		return nil, err
	}
	if !ValidAPIKey(opt.APIKey) {
		return nil, errors.New("the API key must begin with sk_ or rk_ and be printable ASCII without spaces")
	}
	return &Lister{base, opt.APIKey, "jpintel/" + cmp.Or(opt.Version, "dev")}, nil
}

// CheckBaseURL judges a base URL: Stripe's own, or http to this machine.
func CheckBaseURL(text string) (string, error) {
	base, err := modelgate.CheckBaseURL(text)
	if err != nil {
		return "", err
	}
	if base.String() != DefaultBaseURL && base.Scheme != "http" {
		return "", fmt.Errorf("want %s; anything else is for tests, and on this machine", DefaultBaseURL)
	}
	return base.String(), nil
}

// ValidAPIKey reports whether a key can be one of Stripe's secret or restricted
// keys.
func ValidAPIKey(key string) bool {
	return len(key) > 3 && (key[:3] == "sk_" || key[:3] == "rk_") && modelgate.ValidAPIKey(key)
}

// ListError is a list that could not be read to its end. It quotes nothing of
// what was sent or answered.
type ListError struct {
	Code   string // stripe_auth, stripe_rate_limited, stripe_http_…, stripe_malformed …
	Status int    // 0: no answer
}

func (e *ListError) Error() string { return "listing Stripe's events: " + e.Code }

// SweepCode is the code, for whoever keeps only that.
func (e *ListError) SweepCode() string { return e.Code }

// Events reads the events since a time, the newest first, and gives each to a
// function as Stripe has sent it. It ends with the function's first error.
func (l *Lister) Events(ctx context.Context, since time.Time, each func(body []byte) error) error {
	query := url.Values{"created[gte]": {strconv.FormatInt(since.Unix(), 10)}, "limit": {strconv.Itoa(listPage)}}
	seen := map[string]bool{}
	for range maxListPages {
		page, err := l.page(ctx, query)
		if err != nil {
			return err
		}
		last := ""
		for _, event := range page.data {
			if seen[event.id] { // it would never end
				return &ListError{"stripe_cursor_loop", http.StatusOK}
			}
			seen[event.id], last = true, event.id
			if err := each(event.body); err != nil {
				return err
			}
		}
		if !page.more {
			return nil
		}
		if last == "" {
			return &ListError{"stripe_malformed", http.StatusOK}
		}
		query.Set("starting_after", last)
	}
	return &ListError{"stripe_too_many", http.StatusOK}
}

// eventPage is one page of the list.
type eventPage struct {
	data []listedEvent
	more bool
}

type listedEvent struct {
	id   string
	body []byte // as it came
}

// page makes one request.
func (l *Lister) page(caller context.Context, query url.Values) (page eventPage, err error) {
	ctx, cancel := context.WithTimeout(caller, listTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base+"/v1/events?"+query.Encode(), nil)
	if err != nil {
		return page, errors.New("listing Stripe's events: not a request") // unreachable: the base URL was checked
	}
	req.Header.Set("Authorization", "Bearer "+l.key)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", l.agent)
	transport := &http.Transport{
		Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		DialContext: (&net.Dialer{Timeout: listDial}).DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: listDial,
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req) // which follows no redirect
	if err != nil {
		return page, cmp.Or[error](caller.Err(), &ListError{"stripe_unreachable", 0})
	}
	defer resp.Body.Close()
	if code := listRefusal(resp.StatusCode); code != "" {
		return page, &ListError{code, resp.StatusCode}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxListPage+1))
	switch {
	case err != nil:
		return page, cmp.Or[error](caller.Err(), &ListError{"stripe_cut_off", resp.StatusCode})
	case len(body) > maxListPage:
		return page, &ListError{"stripe_too_large", resp.StatusCode}
	}
	if page, err = parsePage(body); err != nil {
		return page, &ListError{"stripe_malformed", resp.StatusCode}
	}
	return page, nil
}

// listRefusal is the code of an answer that is none; "" for 200.
func listRefusal(status int) string {
	switch status {
	case http.StatusOK:
		return ""
	case http.StatusUnauthorized, http.StatusForbidden:
		return "stripe_auth"
	case http.StatusTooManyRequests:
		return "stripe_rate_limited"
	}
	return "stripe_http_" + strconv.Itoa(status)
}

// parsePage reads {"object":"list","data":[…],"has_more":…}. Names are taken as
// they are written: encoding/json alone would let "Data" be data.
func parsePage(body []byte) (page eventPage, err error) {
	list, err := pageMembers(body)
	if err != nil || pageText(list["object"]) != "list" {
		return page, errors.New("not a list")
	}
	switch more := string(bytes.TrimSpace(list["has_more"])); more {
	case "true", "false":
		page.more = more == "true"
	default:
		return page, errors.New("has_more: want true or false")
	}
	var data []json.RawMessage
	if err := json.Unmarshal(list["data"], &data); err != nil || data == nil {
		return page, errors.New("data: want a list")
	}
	for _, body := range data {
		event, err := pageMembers(body)
		if err != nil || pageText(event["object"]) != "event" || pageText(event["id"]) == "" {
			return page, errors.New("data: want events")
		}
		page.data = append(page.data, listedEvent{pageText(event["id"]), body})
	}
	return page, nil
}

func pageMembers(body []byte) (all map[string]json.RawMessage, err error) {
	err = json.Unmarshal(body, &all)
	return all, err
}

// pageText is a string; "" for anything else.
func pageText(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
