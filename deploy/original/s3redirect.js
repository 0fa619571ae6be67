// Sends what the npm client's S3 code would send to s3.amazonaws.com to a Gradient Jobs service instead:
//
//   S3_ENDPOINT=http://HOST:PORT/_s3 NODE_OPTIONS="--require /path/to/s3redirect.js" paperspace jobs artifactsGet ...
//
// That client has neither an option nor a variable for it. Nothing of the client is changed.
'use strict';

const http = require('http');
const https = require('https');

if (process.env.S3_ENDPOINT) {
  const endpoint = new URL(process.env.S3_ENDPOINT);
  const original = https.request;

  https.request = function request(options, ...rest) {
    const host = (options && (options.host || options.hostname)) || '';
    if (!host.endsWith('s3.amazonaws.com')) return original.call(https, options, ...rest);
    const secure = endpoint.protocol === 'https:';
    const redirected = Object.assign({}, options, {
      protocol: endpoint.protocol,
      host: endpoint.hostname,
      hostname: endpoint.hostname,
      port: endpoint.port || (secure ? 443 : 80),
      path: endpoint.pathname.replace(/\/$/, '') + options.path,
      headers: Object.assign({}, options.headers, { Host: endpoint.host }),
      agent: undefined, // the other protocol's would refuse
    });
    return (secure ? original : http.request).call(secure ? https : http, redirected, ...rest);
  };
}
