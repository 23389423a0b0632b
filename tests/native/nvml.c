/* A stand-in for libnvidia-ml.so.1: the calls of NVML that kb makes, answered from a scenario in the environment.
 *
 *   NVML_INIT       what nvmlInit returns (an nvmlReturn_t; 0 without it)
 *   NVML_HANG       seconds that nvmlInit sleeps first
 *   NVML_DRIVER     the driver's version
 *   NVML_GPUS       name=…,total=…,reserved=…,used=…,major=…,minor=…,uuid=…,mig=0|1,error=…  (MiB), one per ';'
 *   NVML_SLICES     gpu=…,instance=…, and the same keys
 *   NVML_PROCESSES  gpu=…,pid=…,used=…   (MiB; no `used`: not available)
 *                   and of what is watched: util=…,power=…,limit=… (W),celsius=…,slowdown=…,throttle=… (bits),
 *                   grow=… (MiB that each reading of the memory adds)
 *   NVML_GONE       after=…,for=…,error=…: that many readings of the memory succeed, then as many calls (starting NVML
 *                   too) fail with the error (15 without one: the GPU is lost), then all is well again
 *   NVML_STALL      after=…,seconds=…: the reading after that many sleeps
 *   NVML_LOG        a file to which every nvmlInit and nvmlShutdown appends its name
 *
 * Compiled with -DOLD_DRIVER it lacks what drivers before R510 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MOST = 16, MIB = 1 << 20 };
static const unsigned long long NOT_AVAILABLE = ~0ULL;

typedef struct {
    char name[96], uuid[80];
    unsigned long long total, reserved, used;
    int major, minor, mig, error, gpu, instance, slice, util, power, limit, celsius, slowdown, throttle, grow;
} device;

typedef struct { unsigned pid; int gpu; unsigned long long used; } process;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_info;

static device gpus[MOST], slices[MOST];
static process processes[MOST];
static int gpu_count, slice_count, process_count;

static int number(const char *item, const char *key, long long otherwise) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, ",%s=", key);
    const char *found = strstr(item, pattern);
    return found ? atoi(found + strlen(pattern)) : (int)otherwise;
}

static void text(const char *item, const char *key, char *into, size_t size) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, ",%s=", key);
    const char *found = strstr(item, pattern);
    snprintf(into, size, "%.*s", found ? (int)strcspn(found + strlen(pattern), ",") : 0, found ? found + strlen(pattern) : "");
}

static int items(const char *variable, char list[MOST][512]) {
    const char *at = getenv(variable);
    int count = 0;
    while (at && *at && count < MOST) {
        int length = (int)strcspn(at, ";");
        snprintf(list[count++], 512, ",%.*s", length, at);
        at += length + (at[length] == ';');
    }
    return count;
}

static int read_devices(const char *variable, device *into, int slice) {
    char list[MOST][512];
    int count = items(variable, list);
    for (int i = 0; i < count; i++) {
        device *d = &into[i];
        text(list[i], "name", d->name, sizeof d->name);
        text(list[i], "uuid", d->uuid, sizeof d->uuid);
        d->total = (unsigned long long)number(list[i], "total", 0) * MIB;
        d->reserved = (unsigned long long)number(list[i], "reserved", 0) * MIB;
        d->used = (unsigned long long)number(list[i], "used", 0) * MIB;
        d->major = number(list[i], "major", 8);
        d->minor = number(list[i], "minor", 0);
        d->mig = number(list[i], "mig", 0);
        d->error = number(list[i], "error", 0);
        d->gpu = number(list[i], "gpu", i);
        d->instance = number(list[i], "instance", i);
        d->slice = slice;
        d->util = number(list[i], "util", -1);
        d->power = number(list[i], "power", -1);
        d->limit = number(list[i], "limit", -1);
        d->celsius = number(list[i], "celsius", -1);
        d->slowdown = number(list[i], "slowdown", -1);
        d->throttle = number(list[i], "throttle", -1);
        d->grow = number(list[i], "grow", 0);
    }
    return count;
}

static void note(const char *what) {
    const char *path = getenv("NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) { fprintf(file, "%s\n", what); fclose(file); }
}

static int readings, failures;

/* What NVML_GONE makes of this call; `reading` where it reads the memory. */
static int gone(int reading) {
    char list[MOST][512];
    if (items("NVML_STALL", list) && reading && readings == number(list[0], "after", 0))
        sleep((unsigned)number(list[0], "seconds", 1));
    if (!items("NVML_GONE", list)) { readings += reading; return SUCCESS; }
    if (readings < number(list[0], "after", 0)) { readings += reading; return SUCCESS; }
    if (failures >= number(list[0], "for", 1)) { readings += reading; return SUCCESS; }
    failures++;
    return number(list[0], "error", 15);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (readings && gone(0)) return 9;
    if (getenv("NVML_HANG")) sleep((unsigned)atoi(getenv("NVML_HANG")));
    if (getenv("NVML_INIT") && atoi(getenv("NVML_INIT"))) return atoi(getenv("NVML_INIT"));
    note("init");
    gpu_count = read_devices("NVML_GPUS", gpus, 0);
    slice_count = read_devices("NVML_SLICES", slices, 1);
    char list[MOST][512];
    process_count = items("NVML_PROCESSES", list);
    for (int i = 0; i < process_count; i++) {
        int used = number(list[i], "used", -1);
        processes[i] = (process){(unsigned)number(list[i], "pid", 1), number(list[i], "gpu", 0),
                                 used < 0 ? NOT_AVAILABLE : (unsigned long long)used * MIB};
    }
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { note("shutdown"); return SUCCESS; }

const char *nvmlErrorString(int result) {
    switch (result) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static int answer(char *into, unsigned size, const char *value) {
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(into, value);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *into, unsigned size) { return answer(into, size, getenv("NVML_DRIVER")); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)gpu_count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    if ((int)index >= gpu_count) return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return gpus[index].error;
}

int nvmlDeviceGetName(device *d, char *into, unsigned size) { return answer(into, size, d->name); }
int nvmlDeviceGetUUID(device *d, char *into, unsigned size) { return answer(into, size, d->uuid); }

static void grow(device *d) {
    d->used += (unsigned long long)d->grow * MIB;
    if (d->used + d->reserved > d->total) d->used = d->total - d->reserved;
}

int nvmlDeviceGetMemoryInfo(device *d, unsigned long long info[3]) {
    if (!d->total) return NOT_SUPPORTED;
    int away = gone(1);
    if (away) return away;
    grow(d);
#ifdef OLD_DRIVER /* which hid what it reserved */
    info[0] = d->total - d->reserved, info[1] = d->total - d->reserved - d->used, info[2] = d->used;
#else
    info[0] = d->total, info[1] = d->total - d->reserved - d->used, info[2] = d->reserved + d->used;
#endif
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    if (d->slice) return INVALID_ARGUMENT;
    *major = d->major, *minor = d->minor;
    return SUCCESS;
}

static int running(device *d, unsigned *count, process_info *into) {
    unsigned found = 0;
    for (int i = 0; i < process_count; i++) {
        if (d->slice || processes[i].gpu != d - gpus) continue;
        if (into && found < *count) into[found] = (process_info){processes[i].pid, processes[i].used, ~0U, ~0U};
        found++;
    }
    int fits = into ? found <= *count : !found;
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetComputeRunningProcesses_v2(device *d, unsigned *count, process_info *into) { return running(d, count, into); }

int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    if (d->slice || d->major < 8) return NOT_SUPPORTED;
    *current = *pending = (unsigned)d->mig;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { *count = d->mig ? 7 : 0; return SUCCESS; }

/* Slices keep their numbers when others are destroyed: every second number is free here. */
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **handle) {
    unsigned seen = 0;
    for (int i = 0; i < slice_count; i++)
        if (slices[i].gpu == d - gpus && 2 * seen++ == index) { *handle = &slices[i]; return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(device *d, unsigned *id) {
    if (!d->slice) return NOT_SUPPORTED;
    *id = (unsigned)d->instance;
    return SUCCESS;
}

static int told(int value, unsigned *into, unsigned scale) {
    if (value < 0) return NOT_SUPPORTED;
    *into = (unsigned)value * scale;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned rates[2]) {
    if (d->slice) return NOT_SUPPORTED;
    rates[1] = 0;
    return told(d->util, rates, 1);
}
int nvmlDeviceGetPowerUsage(device *d, unsigned *milliwatts) { return told(d->power, milliwatts, 1000); }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *milliwatts) { return told(d->limit, milliwatts, 1000); }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *celsius) { (void)sensor; return told(d->celsius, celsius, 1); }
int nvmlDeviceGetTemperatureThreshold(device *d, int kind, unsigned *celsius) {
    return kind == 1 ? told(d->slowdown, celsius, 1) : NOT_SUPPORTED;
}
static int reasons(device *d, unsigned long long *bits) {
    if (d->throttle < 0) return NOT_SUPPORTED;
    *bits = (unsigned long long)d->throttle;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *bits) { return reasons(d, bits); }

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *bits) { return reasons(d, bits); }
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process_info *into) { return running(d, count, into); }

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *info) {
    if (info->version != (sizeof *info | 2U << 24)) return INVALID_ARGUMENT;
    if (!d->total) return NOT_SUPPORTED;
    int away = gone(1);
    if (away) return away;
    grow(d);
    info->total = d->total, info->reserved = d->reserved, info->used = d->used;
    info->free = d->total - d->reserved - d->used;
    return SUCCESS;
}
#endif
