// A CUDA device on paper, for builds of PyTorch without CUDA.
//
// Fake tensors on "cuda" carry shapes and no memory, and still the autograd engine asks for the device's guard and hooks,
// which only a CUDA build registers. These answer "one device, nothing to do".

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::EventFlag;
using c10::Stream;

const Device kDevice(DeviceType::CUDA, 0);

struct PaperGuard : public c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, kDevice); }
  Stream getNewStream(Device, int = 0) const override { return Stream(Stream::DEFAULT, kDevice); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, kDevice); }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, new PaperGuard());

struct PaperHooks : public at::CUDAHooksInterface {
  explicit PaperHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  int getNumGPUs() const override { return 1; }
};

}  // namespace

namespace at {
using ::PaperHooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, PaperHooks)
}  // namespace at
